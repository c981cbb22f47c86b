// Stored numbers, little-endian, as float or double.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "stet/types.hpp"

namespace stet::weights {

/// The value of an IEEE binary16 or bfloat16 pattern. Exact, NaN payloads included.
float f16_to_f32(std::uint16_t bits) noexcept;
float bf16_to_f32(std::uint16_t bits) noexcept;

/// out[i] = element i of `raw`, which holds out.size() elements of `type` at any alignment. Widening is exact; f64 to
/// f32 rounds to nearest even, beyond the largest float to infinity.
void convert(DType type, std::span<const std::byte> raw, std::span<float> out) noexcept;
void convert(DType type, std::span<const std::byte> raw, std::span<double> out) noexcept;

}  // namespace stet::weights
