// The words that the cache, the model and the kernels share. No behaviour.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stet {

/// An absolute position in its sequence; the first token has position 0.
using Pos = std::int64_t;

/// A token's number in the vocabulary.
using TokenId = std::int32_t;

/// Element types of weight files and of activations (activations are f32 or f64 only).
enum class DType : std::uint8_t { f64, f32, f16, bf16 };

constexpr std::size_t size_of(DType type) noexcept {
  switch (type) {
    case DType::f64:
      return 8;
    case DType::f32:
      return 4;
    case DType::f16:
    case DType::bf16:
      break;
  }
  return 2;
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
      break;
  }
  return "bf16";
}

}  // namespace stet
