#include "weights/convert.hpp"

#include <bit>
#include <cstring>

namespace stet::weights {
namespace {

static_assert(std::endian::native == std::endian::little,
              "files are little-endian, and so far is every machine Stet runs on");

template <class From, class To, class Widen>
void each(std::span<const std::byte> raw, std::span<To> out, Widen widen) noexcept {
  const std::byte* from = raw.data();
  for (std::size_t i = 0; i < out.size(); ++i) {
    From stored;
    std::memcpy(&stored, from + i * sizeof(From), sizeof(From));
    out[i] = static_cast<To>(widen(stored));
  }
}

template <class To>
void convert_to(DType type, std::span<const std::byte> raw, std::span<To> out) noexcept {
  switch (type) {
    case DType::f64:
      return each<double>(raw, out, [](double x) { return x; });
    case DType::f32:
      return each<float>(raw, out, [](float x) { return x; });
    case DType::f16:
      return each<std::uint16_t>(raw, out, f16_to_f32);
    case DType::bf16:
      return each<std::uint16_t>(raw, out, bf16_to_f32);
  }
}

}  // namespace

float f16_to_f32(std::uint16_t bits) noexcept {
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

float bf16_to_f32(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

void convert(DType type, std::span<const std::byte> raw, std::span<float> out) noexcept {
  convert_to(type, raw, out);
}
void convert(DType type, std::span<const std::byte> raw, std::span<double> out) noexcept {
  convert_to(type, raw, out);
}

}  // namespace stet::weights
