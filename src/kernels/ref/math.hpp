// exp, tanh, erf and the activations built on them, in float and double: rule 3 of docs/numerics.md.
//
// Only fma, multiplication, addition, division, comparison with selection, and bit operations on unsigned integers of
// the same width are used, in one order without branches, so that a vector version (AVX2, AVX-512, NEON) can follow
// lane by lane and give the same bits; what it needs is all public here. libm is not called: its results differ with
// CPU and version. Constants come from tools/fit_functions.py, which `--check`s them against this file.
//
// Largest errors in units in the last place of the true result (tests/kernels/test_math.cpp asserts 1.5, 2 and 2):
//            exp    tanh   erf
//   float    1.01   1.31   0.99    every float from 2^-30 to where the result is constant; both signs for exp
//   double   1.00   1.31   0.98    the largest of 20 million samples
// Subnormal results are gradual, not flushed. NaN gives NaN (its sign and payload are not promised).
#pragma once

#include <bit>
#include <cfloat>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>

#ifdef __FAST_MATH__
#error "fast-math changes the bits that docs/numerics.md promises"
#endif

namespace stet::kernels::ref {

static_assert(FLT_EVAL_METHOD == 0, "intermediate results must have the precision of their type");

template <class T>
concept Real = std::same_as<T, float> || std::same_as<T, double>;

/// Constants of a type. Polynomials are stored lowest degree first:
/// exp(r) - 1 = r + r^2 kExpm1(r) for |r| <= ln(2) / 2; tanh(x) = x + x^3 kTanh(x^2) for 0 <= x < kTanhSplit;
/// erf(x) = x + x kErf(x^2) for 0 <= x < kErfSplit; log(1 - erf(x)) = x kLogErfc(x) for kErfSplit <= x <= kErfOne.
template <Real T>
struct MathConstants;

template <>
struct MathConstants<float> {
  using Bits = std::uint32_t;
  static constexpr int kFractionBits = 23;
  static constexpr Bits kBias = 127;
  static constexpr int kSignShift = 31;
  static constexpr Bits kSignBit = 0x8000'0000;
  static constexpr Bits kInfinity = 0x7f80'0000;
  static constexpr float kRound = 0x1.8p23f;  // x + kRound: x rounded to an integer, which the low bits then hold
  static constexpr float kExpLow = -104.0f;   // from here down exp rounds to 0
  static constexpr float kExpHigh = 89.0f;    // from here up it overflows
  static constexpr float kTanhSplit = 0.5625f;
  static constexpr float kTanhOne = 10.0f;  // from here on tanh rounds to 1
  static constexpr float kErfSplit = 0.9375f;
  static constexpr float kErfOne = 4.0f;  // from here on erf rounds to 1
  static constexpr float kLog2E = 0x1.715476p+0f;
  static constexpr float kLn2High = 0x1.62e4p-1f;
  static constexpr float kLn2Low = 0x1.7f7d1cp-20f;
  static constexpr float kSqrt2OverPi = 0x1.988454p-1f;
  static constexpr float kSqrtHalf = 0x1.6a09e6p-1f;
  static constexpr float kExpm1[] = {0x1.fffff8p-2f, 0x1.55549p-3f, 0x1.555ba6p-5f, 0x1.123aa6p-7f, 0x1.6840c8p-10f};
  static constexpr float kTanh[] = {-0x1.555548p-2f, 0x1.110c62p-3f, -0x1.b906e2p-5f, 0x1.581e06p-6f, -0x1.94a5bap-8f};
  static constexpr float kErf[] = {0x1.06eba8p-3f, -0x1.812742p-2f,  0x1.ce2de6p-4f, -0x1.b80c08p-6f,
                                   0x1.54b154p-8f, -0x1.a97ffep-11f, 0x1.5a7072p-14f};
  static constexpr float kLogErfc[] = {-0x1.20f03ep+0f, -0x1.452932p-1f, -0x1.b3a34p-4f,  0x1.870a0ap-6f,
                                       -0x1.e40c4ep-9f, 0x1.5fbe5ap-12f, -0x1.a3fd66p-17f};
};

template <>
struct MathConstants<double> {
  using Bits = std::uint64_t;
  static constexpr int kFractionBits = 52;
  static constexpr Bits kBias = 1023;
  static constexpr int kSignShift = 63;
  static constexpr Bits kSignBit = 0x8000'0000'0000'0000;
  static constexpr Bits kInfinity = 0x7ff0'0000'0000'0000;
  static constexpr double kRound = 0x1.8p52;
  static constexpr double kExpLow = -746.0;
  static constexpr double kExpHigh = 710.0;
  static constexpr double kTanhSplit = 0.5625;
  static constexpr double kTanhOne = 20.0;
  static constexpr double kErfSplit = 0.9375;
  static constexpr double kErfOne = 6.0;
  static constexpr double kLog2E = 0x1.71547652b82fep+0;
  static constexpr double kLn2High = 0x1.62e42fefa4p-1;
  static constexpr double kLn2Low = -0x1.8432a1b0e2634p-43;
  static constexpr double kSqrt2OverPi = 0x1.9884533d43651p-1;
  static constexpr double kSqrtHalf = 0x1.6a09e667f3bcdp-1;
  static constexpr double kExpm1[] = {0x1.000000000000ap-1,  0x1.555555555550ep-3,  0x1.55555555506e4p-5,
                                      0x1.111111112331fp-7,  0x1.6c16c1846b703p-10, 0x1.a01a01410fb4dp-13,
                                      0x1.a0199980dff1ap-16, 0x1.71def5b576bfbp-19, 0x1.28addd2149862p-22,
                                      0x1.adc6ff35aa314p-26};
  static constexpr double kTanh[] = {-0x1.555555555545bp-2,  0x1.11111110fd4d2p-3,  -0x1.ba1ba1a92d5b1p-5,
                                     0x1.664f44f242e01p-6,   -0x1.226dc72a8b155p-7, 0x1.d6c351640188cp-9,
                                     -0x1.7cd80ff1c52bep-10, 0x1.2efea0b0a3cf4p-11, -0x1.b4de83b1a3fecp-13,
                                     0x1.a08819ba2ee21p-15};
  static constexpr double kErf[] = {0x1.06eba8214db68p-3,   -0x1.812746b0379c4p-2,  0x1.ce2f21a0417fap-4,
                                    -0x1.b82ce31234d82p-6,  0x1.565bcd021d37ap-8,   -0x1.c02db1c6fa3bbp-11,
                                    0x1.f9a2e3d9d9ea1p-14,  -0x1.f4cd0a4a494e6p-17, 0x1.b99d848f0dcp-20,
                                    -0x1.5cce086e7aaabp-23, 0x1.dcf72aa92301cp-27,  -0x1.beb74b1f6b78ep-31};
  static constexpr double kLogErfc[] = {-0x1.20dd74b96c101p+0,  -0x1.45f30ae093a12p-1,  -0x1.a4f4a704e8084p-4,
                                        0x1.396939be82691p-6,   0x1.acd07f234fe52p-13,  -0x1.b90c3e6815f86p-10,
                                        0x1.27e0e72e9255ap-11,  0x1.3131bb0731bfep-17,  -0x1.a583a861a2df9p-14,
                                        0x1.ea85d3c11bc41p-15,  -0x1.651a94caebb34p-16, 0x1.7c36d49105b93p-18,
                                        -0x1.32e71b248772bp-20, 0x1.76be5b5b4a83cp-23,  -0x1.50e807fe90e0ep-26,
                                        0x1.a5a80df3f8b56p-30,  -0x1.485062e3398cap-34, 0x1.defccd3ed88cdp-40};
};

// Inlined even without optimisation, so that no copy compiled for another instruction set can be linked in its place.
#define STET_MATH_INLINE [[gnu::always_inline]] inline

/// c[0] + c[1] x + ... by Horner's rule, one fma a step.
template <std::size_t I = 0, Real T, std::size_t N>
STET_MATH_INLINE T horner(const T (&c)[N], T x) noexcept {
  if constexpr (I + 1 == N) {
    return c[I];
  } else {
    return std::fma(horner<I + 1>(c, x), x, c[I]);
  }
}

template <Real T>
STET_MATH_INLINE T absolute(T x) noexcept {
  using C = MathConstants<T>;
  return std::bit_cast<T>(std::bit_cast<typename C::Bits>(x) & ~C::kSignBit);
}

/// `magnitude`, whose sign bit is clear, with the sign of `x`: results are odd functions to the bit, -0 included.
template <Real T>
STET_MATH_INLINE T with_sign_of(T magnitude, T x) noexcept {
  using C = MathConstants<T>;
  using Bits = typename C::Bits;
  return std::bit_cast<T>(std::bit_cast<Bits>(magnitude) | (std::bit_cast<Bits>(x) & C::kSignBit));
}

// Of a plain selection g++ makes a branch around the arithmetic of one side, and then does not vectorise the caller's
// loop. So these two take apart the bits of non-negative numbers, which order like unsigned integers, NaN above all.

/// a > bound ? bound : a, for a without sign; NaN stays.
template <Real T>
STET_MATH_INLINE T clamp_above(T a, T bound) noexcept {
  using C = MathConstants<T>;
  using Bits = typename C::Bits;
  const Bits bits = std::bit_cast<Bits>(a), limit = std::bit_cast<Bits>(bound);
  const Bits above = (limit - bits) >> C::kSignShift, nan = (C::kInfinity - bits) >> C::kSignShift;
  const Bits mask = nan - above;
  return std::bit_cast<T>((limit & mask) | (bits & ~mask));
}

/// a < bound ? yes : no, for a without sign.
template <Real T>
STET_MATH_INLINE T select_below(T a, T bound, T yes, T no) noexcept {
  using C = MathConstants<T>;
  using Bits = typename C::Bits;
  const Bits mask = Bits(0) - ((std::bit_cast<Bits>(a) - std::bit_cast<Bits>(bound)) >> C::kSignShift);
  return std::bit_cast<T>((std::bit_cast<Bits>(yes) & mask) | (std::bit_cast<Bits>(no) & ~mask));
}

/// exp(x) = 2^n (1 + m), |m| < 0.42. `n` is a two's complement number in unsigned bits.
template <Real T>
struct Exponential {
  typename MathConstants<T>::Bits n;
  T m;
};

/// For kExpLow <= x <= kExpHigh. The reduction r = x - n ln 2, with ln 2 in two parts of which the first is short
/// enough that n times it is exact, is that of Cody and Waite (Software Manual for the Elementary Functions, 1980).
template <Real T>
STET_MATH_INLINE Exponential<T> reduce_exp(T x) noexcept {
  using C = MathConstants<T>;
  using Bits = typename C::Bits;
  const T shifted = std::fma(x, C::kLog2E, C::kRound);
  const T n = shifted - C::kRound;
  T r = std::fma(n, -C::kLn2High, x);
  r = std::fma(n, -C::kLn2Low, r);
  const T m = std::fma(r * r, horner(C::kExpm1, r), r);
  return {std::bit_cast<Bits>(shifted) - std::bit_cast<Bits>(C::kRound), m};
}

/// 2^n for n in the range of normal numbers.
template <Real T>
STET_MATH_INLINE T power_of_two(typename MathConstants<T>::Bits n) noexcept {
  using C = MathConstants<T>;
  return std::bit_cast<T>((n + C::kBias) << C::kFractionBits);
}

/// e^x. exp(-inf) is 0, overflow and exp(inf) are inf.
template <Real T>
STET_MATH_INLINE T exp(T x) noexcept {
  using C = MathConstants<T>;
  // Selections are written so that NaN, which compares false, stays.
  T clamped = x < C::kExpLow ? C::kExpLow : x;
  clamped = clamped > C::kExpHigh ? C::kExpHigh : clamped;
  const Exponential<T> e = reduce_exp(clamped);
  // 2^n is applied as two factors, each a normal number: the first product is exact, the second rounds once, also into
  // the subnormal range. The bias keeps the halved number positive: vector units lack an arithmetic shift of 64 bits.
  const auto biased = e.n + 2 * C::kBias;
  const auto first = biased >> 1;
  const auto second = biased - first;
  const T y = (T(1) + e.m) * std::bit_cast<T>(first << C::kFractionBits);
  return y * std::bit_cast<T>(second << C::kFractionBits);
}

/// tanh. Near 0 a polynomial; beyond kTanhSplit 1 - 2 / (e^2x + 1), which is never more than 1.
template <Real T>
STET_MATH_INLINE T tanh(T x) noexcept {
  using C = MathConstants<T>;
  const T a = clamp_above(absolute(x), C::kTanhOne);
  const T square = a * a;
  const T near = std::fma(square * horner(C::kTanh, square), a, a);
  const Exponential<T> e = reduce_exp(a + a);
  const T scale = power_of_two<T>(e.n);
  const T far = T(1) - T(2) / std::fma(scale, e.m, scale + T(1));
  return with_sign_of(select_below(a, C::kTanhSplit, near, far), x);
}

/// The error function. Near 0 a polynomial; beyond kErfSplit 1 - exp(log(1 - erf x)), where the logarithm is a
/// polynomial (a form that N. Juffa's public erff() made known): what exp adds to the error is scaled by 1 - erf x <
/// 0.19.
template <Real T>
STET_MATH_INLINE T erf(T x) noexcept {
  using C = MathConstants<T>;
  const T a = clamp_above(absolute(x), C::kErfOne);
  const T near = std::fma(horner(C::kErf, a * a), a, a);
  const Exponential<T> e = reduce_exp(horner(C::kLogErfc, a) * a);
  const T scale = power_of_two<T>(e.n);
  const T far = std::fma(-scale, e.m, T(1) - scale);
  return with_sign_of(select_below(a, C::kErfSplit, near, far), x);
}

/// Hendrycks and Gimpel 2016, the approximation that GPT-2 uses:
/// (x / 2) (1 + tanh(sqrt(2 / pi) fma(0.044715 (x x), x, x))). NaN at -inf, as the formula says.
template <Real T>
STET_MATH_INLINE T gelu_tanh(T x) noexcept {
  using C = MathConstants<T>;
  const T cubic = std::fma(T(0.044715) * (x * x), x, x);
  return (T(0.5) * x) * (T(1) + tanh(C::kSqrt2OverPi * cubic));
}

/// (x / 2) (1 + erf(x sqrt(1/2))). NaN at -inf, as the formula says.
template <Real T>
STET_MATH_INLINE T gelu_erf(T x) noexcept {
  using C = MathConstants<T>;
  return (T(0.5) * x) * (T(1) + erf(x * C::kSqrtHalf));
}

/// max(x, 0); NaN stays, and so does -0.
template <Real T>
STET_MATH_INLINE T relu(T x) noexcept {
  return x < T(0) ? T(0) : x;
}

/// x / (1 + exp(-x)). NaN at -inf, as the formula says.
template <Real T>
STET_MATH_INLINE T silu(T x) noexcept {
  return x / (T(1) + exp(-x));
}

#undef STET_MATH_INLINE

}  // namespace stet::kernels::ref
