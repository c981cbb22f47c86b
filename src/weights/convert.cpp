#include "weights/convert.hpp"

#include <bit>
#include <cstring>

#include "core/half.hpp"

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
    case DType::int8:
    case DType::int4:
      break;  // no file has them
  }
}

}  // namespace

void convert(DType type, std::span<const std::byte> raw, std::span<float> out) noexcept {
  convert_to(type, raw, out);
}
void convert(DType type, std::span<const std::byte> raw, std::span<double> out) noexcept {
  convert_to(type, raw, out);
}

}  // namespace stet::weights
