// Unnormalised probabilities.
#pragma once

#include <cstddef>

namespace stet::sample {

/// out[i] = exp((x[i] - largest) / temperature) by the numerics contract's exp, so the same on every machine. Compiled
/// for fused multiply-add, hence the plain interface: no template that other code shares may be made here.
void weights(const double* x, std::size_t count, double largest, double temperature, double* out) noexcept;

}  // namespace stet::sample
