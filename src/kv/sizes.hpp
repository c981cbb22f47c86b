// Size arithmetic that saturates: a sum that does not fit into memory sticks at kTooMuch, so that one comparison at the
// end finds any overflow on the way.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>

#include "base/buffer.hpp"

namespace stet::kv {

/// No object can be larger than this.
inline constexpr std::size_t kTooMuch = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());

constexpr std::size_t add(std::size_t a, std::size_t b) noexcept {
  return std::min(a + b, kTooMuch);
}

constexpr std::size_t multiply(std::size_t a, std::size_t b) noexcept {
  return b != 0 && a > kTooMuch / b ? kTooMuch : a * b;
}

constexpr std::size_t round_up(std::size_t bytes) noexcept {
  return std::min(base::align_up(bytes), kTooMuch);
}

}  // namespace stet::kv
