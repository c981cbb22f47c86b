// What matmul and attention share: a register tile of chains, and the sum over the 16 virtual lanes. Included once for
// each target by simd.cpp.
#if defined(STET_SIMD_TILE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef STET_SIMD_TILE_INL
#undef STET_SIMD_TILE_INL
#else
#define STET_SIMD_TILE_INL
#endif

#include <hwy/highway.h>
#include <type_traits>

#include "kernels/kernels.hpp"

// What Highway compiles besides is never run.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON
HWY_BEFORE_NAMESPACE();
namespace stet::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using D = hn::ScalableTag<T>;
template <class T>
using V = hn::Vec<D<T>>;
template <class T>
inline constexpr int kN = static_cast<int>(hn::MaxLanes(D<T>()));

// A register tile is kTileRows x kTileVecs accumulators beside kTileVecs weights: 24 + 4 of 32 registers, or 12 + 2
// of 16.
inline constexpr int kTileRows = 6;
#if HWY_TARGET == HWY_AVX2
inline constexpr int kTileVecs = 2;
#else
inline constexpr int kTileVecs = 4;
#endif
// One row has few chains in flight: all of a panel's vectors at once.
inline constexpr int kRowVecs = 8;

inline constexpr int kLanes = 16;
inline constexpr int kNormRows = 4;
inline constexpr Pos kBlock = kSoftmaxBlock;

// What the arithmetic sees of stored numbers: themselves, or smaller ones widened exactly.
template <class T>
HWY_INLINE V<T> load(const T* p) {
  return hn::LoadU(D<T>(), p);
}
template <class T, class Half>
HWY_INLINE V<T> load_half(const Half* p) {
  return hn::PromoteTo(D<T>(), hn::LoadU(hn::Rebind<Half, D<T>>(), p));
}
template <class T>
HWY_INLINE V<T> load(const hwy::bfloat16_t* p) {
  return load_half<T>(p);
}
template <class T>
HWY_INLINE V<T> load(const hwy::float16_t* p) {
  return load_half<T>(p);
}

template <class T>
HWY_INLINE V<T> load(const std::int8_t* p) {
  const hn::Rebind<std::int32_t, D<T>> wide;
  return hn::ConvertTo(D<T>(), hn::PromoteTo(wide, hn::LoadU(hn::Rebind<std::int8_t, D<T>>(), p)));
}

struct NoPrefetch {
  HWY_INLINE void step() {}
};

// acc[r][v] = fma(x[r][k], w[v][k], acc[r][v]) for k in [0, n), in registers. w[v] advances by `w_step` a k.
template <class T, int kRows, int kVecs, class S, class P = NoPrefetch>
HWY_INLINE void chains(const T* const* HWY_RESTRICT x, const S* const* HWY_RESTRICT w, std::size_t w_step,
                       std::size_t n, V<T> (&acc)[kRows][kVecs], P prefetch = {}) {
  const D<T> d;
  for (std::size_t k = 0; k < n; ++k) {
    prefetch.step();
    V<T> b[kVecs];
    for (int v = 0; v < kVecs; ++v) b[v] = load<T>(w[v] + k * w_step);
    for (int r = 0; r < kRows; ++r) {
      const V<T> a = hn::Set(d, x[r][k]);
      for (int v = 0; v < kVecs; ++v) acc[r][v] = hn::MulAdd(a, b[v], acc[r][v]);
    }
  }
}

// Calls f.template operator()<rows>() with the compile-time number of rows, 1 to kTileRows.
template <class F>
HWY_INLINE void with_rows(int rows, F&& f) {
  switch (rows) {
    case 1:
      return f(std::integral_constant<int, 1>{});
    case 2:
      return f(std::integral_constant<int, 2>{});
    case 3:
      return f(std::integral_constant<int, 3>{});
    case 4:
      return f(std::integral_constant<int, 4>{});
    case 5:
      return f(std::integral_constant<int, 5>{});
    default:
      return f(std::integral_constant<int, kTileRows>{});
  }
}

// ---- Sums over 16 virtual lanes

template <class T>
inline constexpr int kLaneVecs = kLanes / kN<T>;  // vectors that hold the 16 lanes
static_assert(kN<float> <= kLanes && kN<double> <= kLanes);

template <class T>
HWY_INLINE T tree_sum(T* lane) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lane[i] = lane[i] + lane[i + half];
  }
  return lane[0];
}

}  // namespace stet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // targets that fuse

#endif  // per-target include guard
