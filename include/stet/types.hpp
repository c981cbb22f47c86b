// The words that the cache, the model and the kernels share. No behaviour.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stet {

/// An absolute position in its sequence; the first token has position 0.
using Pos = std::int64_t;

/// A token's number in the vocabulary.
using TokenId = std::int32_t;

/// Element types of weights, in files and in memory. Activations and logits are f32 or f64 only (arithmetic_of). int8
/// and int4 are quantised in groups along the inputs of a matrix (docs/numerics.md, rule 6); no file holds them.
enum class DType : std::uint8_t { f64, f32, f16, bf16, int8, int4 };

/// Bits of one element, without the scales of int8 and int4.
constexpr int bits_of(DType type) noexcept {
  switch (type) {
    case DType::f64:
      return 64;
    case DType::f32:
      return 32;
    case DType::f16:
    case DType::bf16:
      return 16;
    case DType::int8:
      return 8;
    case DType::int4:
      break;
  }
  return 4;
}

/// Bytes of one element; of int4, which lie two in a byte, of a pair.
constexpr std::size_t size_of(DType type) noexcept {
  return static_cast<std::size_t>((bits_of(type) + 7) / 8);
}

/// The type that a model with such weights computes in, and its logits have.
constexpr DType arithmetic_of(DType weights) noexcept {
  return weights == DType::f64 ? DType::f64 : DType::f32;
}

constexpr const char* name_of(DType type) noexcept {
  switch (type) {
    case DType::f64:
      return "f64";
    case DType::f32:
      return "f32";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::int8:
      return "int8";
    case DType::int4:
      break;
  }
  return "int4";
}

}  // namespace stet
