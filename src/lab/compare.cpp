#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "lab/verify.hpp"

namespace stet::lab {
namespace {

// Floating-point numbers in their order as integers: neighbours differ by 1, and -0 and +0 by 1 as well, since their
// bits do.
template <class T, class Bits>
std::uint64_t distance(T a, T b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<std::uint64_t>::max();
  constexpr Bits kSign = Bits{1} << (sizeof(Bits) * 8 - 1);
  const auto rank = [](T x) {
    Bits bits;
    std::memcpy(&bits, &x, sizeof bits);
    return (bits & kSign) != 0 ? static_cast<Bits>(~bits) : static_cast<Bits>(bits | kSign);
  };
  const Bits ra = rank(a), rb = rank(b);
  return ra > rb ? ra - rb : rb - ra;
}

template <class T, class Bits>
Difference compare_as(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  Difference d;
  for (std::size_t i = 0; i < a.size(); i += sizeof(T)) {
    if (std::memcmp(a.data() + i, b.data() + i, sizeof(T)) == 0) continue;
    T x, y;
    std::memcpy(&x, a.data() + i, sizeof x);
    std::memcpy(&y, b.data() + i, sizeof y);
    ++d.differing;
    d.max_ulp = std::max(d.max_ulp, distance<T, Bits>(x, y));
  }
  return d;
}

}  // namespace

Difference compare_bits(const std::vector<std::byte>& a, const std::vector<std::byte>& b, DType dtype) {
  if (a.size() != b.size()) {
    return {std::max(a.size(), b.size()) / size_of(dtype), std::numeric_limits<std::uint64_t>::max()};
  }
  // The whole arrays first: equal is the common case, and memcmp is the definition.
  if (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0) return {};
  return dtype == DType::f64 ? compare_as<double, std::uint64_t>(a, b) : compare_as<float, std::uint32_t>(a, b);
}

}  // namespace stet::lab
