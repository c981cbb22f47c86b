#include "stet/version.hpp"

#include "core/numerics.hpp"
#include "kernels/kernels.hpp"

#ifdef __clang__
#define STET_COMPILER "clang++ " __clang_version__
#else
#define STET_COMPILER "g++ " __VERSION__
#endif

namespace stet {

Version version() noexcept {
  return {STET_VERSION, STET_COMPILER, kernels::targets().front().name, kNumericsVersion};
}

Result<void> check_cpu() {
  if (kernels::cpu_fuses()) return {};
  return fail(Code::unsupported,
              "this CPU has no fused multiply-add (x86: FMA and AVX), and the bits that Stet promises need it");
}

}  // namespace stet
