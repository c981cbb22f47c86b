#include "sample/weights.hpp"

#include "kernels/ref/math.hpp"

namespace stet::sample {

void weights(const double* x, std::size_t count, double largest, double temperature, double* out) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = kernels::ref::exp((x[i] - largest) / temperature);
  }
}

}  // namespace stet::sample
