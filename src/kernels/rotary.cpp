#include "kernels/rotary.hpp"

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/ref/math.hpp"

namespace stet::kernels {
namespace {

// pi / 2 in three parts; the first two have 33 bits, so that their products with a quadrant number are exact.
constexpr double kHalfPi1 = 0x1.921fb544p+0, kHalfPi2 = 0x1.0b4611a6p-34, kHalfPi3 = 0x1.3198a2e037073p-69;
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
constexpr double kRound = 0x1.8p52;

// Taylor's series: at pi / 4 the first term left out is below 2^-58 of the sum.
constexpr double kSin[] = {-1.0 / 6,
                           1.0 / 120,
                           -1.0 / 5040,
                           1.0 / 362880,
                           -1.0 / 39916800,
                           1.0 / 6227020800.0,
                           -1.0 / 1307674368000.0,
                           1.0 / 355687428096000.0};
constexpr double kCos[] = {-1.0 / 2,       1.0 / 24,          -1.0 / 720,           1.0 / 40320,
                           -1.0 / 3628800, 1.0 / 479001600.0, -1.0 / 87178291200.0, 1.0 / 20922789888000.0};

constexpr double kPi = 0x1.921fb54442d18p+1;

}  // namespace

SinCos sin_cos(double x) noexcept {
  const double shifted = std::fma(x, kTwoOverPi, kRound);
  const double n = shifted - kRound;
  const auto quadrant = std::bit_cast<std::uint64_t>(shifted) & 3;
  // The remainder in two parts, r + low.
  const double exact = std::fma(-n, kHalfPi1, x);
  const double high = std::fma(-n, kHalfPi2, exact);
  const double tail = std::fma(-n, kHalfPi3, std::fma(-n, kHalfPi2, exact - high));
  const double r = high + tail, low = (high - r) + tail;
  const double z = r * r;
  const double s = r + std::fma(r * z, ref::horner(kSin, z), low);
  const double c = 1.0 + std::fma(z, ref::horner(kCos, z), -r * low);
  switch (quadrant) {
    case 0:
      return {s, c};
    case 1:
      return {c, -s};
    case 2:
      return {-s, -c};
    default:
      return {-c, s};
  }
}

double log(double x) noexcept {
  // x = m 2^e with m from sqrt(1/2) to sqrt(2); log m = 2 atanh((m - 1) / (m + 1)).
  int e = 0;
  double m = std::frexp(x, &e);
  if (m < 0x1.6a09e667f3bcdp-1) {
    m = m + m;
    --e;
  }
  const double s = (m - 1) / (m + 1), z = s * s;
  constexpr double kAtanh[] = {1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9,  1.0 / 11, 1.0 / 13,
                               1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21, 1.0 / 23};
  using C = ref::MathConstants<double>;
  const double n = e;
  const double low = std::fma(2 * (s * z), ref::horner(kAtanh, z), n * C::kLn2Low);
  return std::fma(n, C::kLn2High, 2 * s + low);
}

std::vector<double> rope_frequencies(const Rope& rope, int head_dim) {
  std::vector<double> frequencies;
  const double log_theta = log(rope.theta);
  for (int i = 0; i < head_dim / 2; ++i) {
    double f = ref::exp(-(2.0 * i / head_dim) * log_theta);
    if (rope.scaling == Rope::Scaling::linear) f = f / rope.factor;
    if (rope.scaling == Rope::Scaling::llama3) {
      const double wavelength = 2 * kPi / f, context = static_cast<double>(rope.original_context);
      if (wavelength > context / rope.low_frequency) {
        f = f / rope.factor;
      } else if (wavelength >= context / rope.high_frequency) {
        const double smooth = (context / wavelength - rope.low_frequency) / (rope.high_frequency - rope.low_frequency);
        f = (1 - smooth) * (f / rope.factor) + smooth * f;
      }
    }
    frequencies.push_back(f);
  }
  return frequencies;
}

template <class T>
void rope_angles(std::span<const double> frequencies, Pos position, T* cos, T* sin) noexcept {
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const SinCos value = sin_cos(static_cast<double>(position) * frequencies[i]);
    cos[i] = static_cast<T>(value.cos);
    sin[i] = static_cast<T>(value.sin);
  }
}

template void rope_angles(std::span<const double>, Pos, float*, float*) noexcept;
template void rope_angles(std::span<const double>, Pos, double*, double*) noexcept;

}  // namespace stet::kernels
