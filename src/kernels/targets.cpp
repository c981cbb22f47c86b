#include "kernels/simd/simd.hpp"

namespace stet::kernels {

std::span<const Target> targets() noexcept {
  // Found once; a constant of the machine.
  static const std::vector<Target> all = [] {
    auto found = simd_targets();
    found.push_back({"ref", "ref", &ref_f32(), &ref_f64()});
    return found;
  }();
  return all;
}

}  // namespace stet::kernels
