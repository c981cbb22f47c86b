// Stored numbers, little-endian, as float or double.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "stet/types.hpp"

namespace stet::weights {

/// out[i] = element i of `raw`, which holds out.size() elements of `type` at any alignment. Widening is exact; f64 to
/// f32 rounds to nearest even, beyond the largest float to infinity.
void convert(DType type, std::span<const std::byte> raw, std::span<float> out) noexcept;
void convert(DType type, std::span<const std::byte> raw, std::span<double> out) noexcept;

}  // namespace stet::weights
