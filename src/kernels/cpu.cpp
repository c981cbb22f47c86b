// Compiled without -mfma, so that it runs on the CPUs it has to refuse.
#include "kernels/kernels.hpp"

namespace stet::kernels {

bool cpu_fuses() noexcept {
#if defined(__x86_64__)
  // AVX is what the compiler uses for scalar code once it may fuse.
  return __builtin_cpu_supports("fma") != 0 && __builtin_cpu_supports("avx") != 0;
#elif defined(__aarch64__)
  return true;  // fmadd is part of the base instruction set
#else
  return false;
#endif
}

}  // namespace stet::kernels
