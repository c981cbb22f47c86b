// 16-bit floating point as bits. Widening is exact; rounding is to nearest even, beyond the largest number to infinity.
#pragma once

#include <bit>
#include <cstdint>

namespace stet {

/// The value of an IEEE binary16 pattern, NaN payloads included.
constexpr float f16_to_f32(std::uint16_t bits) noexcept {
  constexpr std::uint32_t kExponent = 0x7C00U << 13;
  std::uint32_t word = (bits & 0x7FFFU) << 13;
  const std::uint32_t exponent = word & kExponent;
  word += (127U - 15U) << 23;
  if (exponent == kExponent) word += (128U - 16U) << 23;  // infinity and NaN keep an exponent of all ones
  if (exponent == 0) {
    // Zero or subnormal: as 2^-14 * (1 + fraction), less the 2^-14 that it has not.
    constexpr std::uint32_t kSmallestNormal = (127U - 14U) << 23;
    word =
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(word + (1U << 23)) - std::bit_cast<float>(kSmallestNormal));
  }
  return std::bit_cast<float>(word | (bits & 0x8000U) << 16);
}

constexpr float bf16_to_f32(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

constexpr std::uint16_t f32_to_bf16(float x) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7FFF'FFFFU) > 0x7F80'0000U) return static_cast<std::uint16_t>(bits >> 16 | 0x40U);  // NaN stays one
  return static_cast<std::uint16_t>((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
}

constexpr std::uint16_t f32_to_f16(float x) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000U);
  std::uint32_t magnitude = bits & 0x7FFF'FFFFU;
  if (magnitude > 0x7F80'0000U) return static_cast<std::uint16_t>(sign | 0x7E00U);
  if (magnitude >= 0x4780'0000U) return static_cast<std::uint16_t>(sign | 0x7C00U);  // 65536 and above
  if (magnitude < 0x3880'0000U) {
    // Below 2^-14 the fraction counts 2^-24: adding 0.5 leaves just that in the low bits, rounded.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F00'0000U));
  }
  magnitude += 0xFFFU + (magnitude >> 13 & 1U);  // may carry into the exponent, up to infinity
  return static_cast<std::uint16_t>(sign | (magnitude - ((127U - 15U) << 23)) >> 13);
}

}  // namespace stet
