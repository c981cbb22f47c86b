// exp, tanh, erf and the activations on vectors: the operations of kernels/ref/math.hpp, lane by lane in the same
// order, so the bits are the same. Included once for each target by simd.cpp.
#if defined(STET_SIMD_MATH_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef STET_SIMD_MATH_INL
#undef STET_SIMD_MATH_INL
#else
#define STET_SIMD_MATH_INL
#endif

#include <hwy/highway.h>
#include "kernels/ref/math.hpp"

HWY_BEFORE_NAMESPACE();
namespace stet::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <std::size_t I = 0, class D, class V, std::size_t N, class T = hn::TFromD<D>>
HWY_INLINE V horner(D d, const T (&c)[N], V x) {
  if constexpr (I + 1 == N) {
    return hn::Set(d, c[I]);
  } else {
    return hn::MulAdd(horner<I + 1>(d, c, x), x, hn::Set(d, c[I]));
  }
}

template <class D>
using Bits = hn::Vec<hn::RebindToUnsigned<D>>;

template <class D>
struct VectorExponential {
  Bits<D> n;
  hn::Vec<D> m;
  hn::Vec<D> whole;  // n as a number
};

template <class D, class V = hn::Vec<D>>
HWY_INLINE VectorExponential<D> reduce_exp(D d, V x) {
  using T = hn::TFromD<D>;
  using C = ref::MathConstants<T>;
  const hn::RebindToUnsigned<D> du;
  const V round = hn::Set(d, C::kRound);
  const V shifted = hn::MulAdd(x, hn::Set(d, C::kLog2E), round);
  const V n = hn::Sub(shifted, round);
  V r = hn::MulAdd(n, hn::Set(d, -C::kLn2High), x);
  r = hn::MulAdd(n, hn::Set(d, -C::kLn2Low), r);
  const V m = hn::MulAdd(hn::Mul(r, r), horner(d, C::kExpm1, r), r);
  return {hn::Sub(hn::BitCast(du, shifted), hn::BitCast(du, round)), m, n};
}

// (1 + m) x 2^n, rounded once.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V scale_exp(D d, const VectorExponential<D>& e) {
  using T = hn::TFromD<D>;
  const V y = hn::Add(hn::Set(d, T(1)), e.m);
#if HWY_TARGET == HWY_AVX3
  if constexpr (sizeof(T) == 8) {
    return V{_mm512_scalef_pd(y.raw, e.whole.raw)};
  } else {
    return V{_mm512_scalef_ps(y.raw, e.whole.raw)};
  }
#else
  // In two steps, for 2^n alone may be no normal number.
  using C = ref::MathConstants<T>;
  const hn::RebindToUnsigned<D> du;
  const auto biased = hn::Add(e.n, hn::Set(du, 2 * C::kBias));
  const auto first = hn::ShiftRight<1>(biased);
  const auto second = hn::Sub(biased, first);
  return hn::Mul(hn::Mul(y, hn::BitCast(d, hn::ShiftLeft<C::kFractionBits>(first))),
                 hn::BitCast(d, hn::ShiftLeft<C::kFractionBits>(second)));
#endif
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp(D d, V x) {
  using C = ref::MathConstants<hn::TFromD<D>>;
  const V low = hn::Set(d, C::kExpLow), high = hn::Set(d, C::kExpHigh);
  V clamped = hn::IfThenElse(hn::Lt(x, low), low, x);
  clamped = hn::IfThenElse(hn::Gt(clamped, high), high, clamped);
  return scale_exp(d, reduce_exp(d, clamped));
}

// exp of a number that is not above 0, or NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_of_nonpositive(D d, V x) {
  const V low = hn::Set(d, ref::MathConstants<hn::TFromD<D>>::kExpLow);
  return scale_exp(d, reduce_exp(d, hn::IfThenElse(hn::Lt(x, low), low, x)));
}

template <class D>
HWY_INLINE hn::Vec<D> power_of_two(D d, Bits<D> n) {
  using C = ref::MathConstants<hn::TFromD<D>>;
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(d, hn::ShiftLeft<C::kFractionBits>(hn::Add(n, hn::Set(du, C::kBias))));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V with_sign_of(D d, V magnitude, V x) {
  return hn::Or(magnitude, hn::And(hn::SignBit(d), x));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V clamp_above(D d, V a, hn::TFromD<D> bound) {
  const V b = hn::Set(d, bound);
  return hn::IfThenElse(hn::Gt(a, b), b, a);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V tanh(D d, V x) {
  using T = hn::TFromD<D>;
  using C = ref::MathConstants<T>;
  const V one = hn::Set(d, T(1));
  const V a = clamp_above(d, hn::Abs(x), C::kTanhOne);
  const V square = hn::Mul(a, a);
  const V near = hn::MulAdd(hn::Mul(square, horner(d, C::kTanh, square)), a, a);
  const auto e = reduce_exp(d, hn::Add(a, a));
  const V scale = power_of_two(d, e.n);
  const V far = hn::Sub(one, hn::Div(hn::Set(d, T(2)), hn::MulAdd(scale, e.m, hn::Add(scale, one))));
  return with_sign_of(d, hn::IfThenElse(hn::Lt(a, hn::Set(d, C::kTanhSplit)), near, far), x);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V erf(D d, V x) {
  using T = hn::TFromD<D>;
  using C = ref::MathConstants<T>;
  const V a = clamp_above(d, hn::Abs(x), C::kErfOne);
  const V near = hn::MulAdd(horner(d, C::kErf, hn::Mul(a, a)), a, a);
  const auto e = reduce_exp(d, hn::Mul(horner(d, C::kLogErfc, a), a));
  const V scale = power_of_two(d, e.n);
  const V far = hn::MulAdd(hn::Neg(scale), e.m, hn::Sub(hn::Set(d, T(1)), scale));
  return with_sign_of(d, hn::IfThenElse(hn::Lt(a, hn::Set(d, C::kErfSplit)), near, far), x);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V gelu_tanh(D d, V x) {
  using T = hn::TFromD<D>;
  using C = ref::MathConstants<T>;
  const V cubic = hn::MulAdd(hn::Mul(hn::Set(d, T(0.044715)), hn::Mul(x, x)), x, x);
  return hn::Mul(hn::Mul(hn::Set(d, T(0.5)), x),
                 hn::Add(hn::Set(d, T(1)), tanh(d, hn::Mul(hn::Set(d, C::kSqrt2OverPi), cubic))));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V gelu_erf(D d, V x) {
  using T = hn::TFromD<D>;
  using C = ref::MathConstants<T>;
  return hn::Mul(hn::Mul(hn::Set(d, T(0.5)), x),
                 hn::Add(hn::Set(d, T(1)), erf(d, hn::Mul(x, hn::Set(d, C::kSqrtHalf)))));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V silu(D d, V x) {
  return hn::Div(x, hn::Add(hn::Set(d, hn::TFromD<D>(1)), exp(d, hn::Neg(x))));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V relu(D d, V x) {
  const V zero = hn::Zero(d);
  return hn::IfThenElse(hn::Lt(x, zero), zero, x);
}

}  // namespace stet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
