// The kernels of kernels/ref on vectors, for each instruction set that fuses: AVX2, AVX-512 and NEON (Highway). Lanes
// lie along outputs, positions or features, never along a chain, so each result is the same chain as in kernels/ref and
// the width of a vector changes nothing. AVX3_DL is kept out on purpose: Debian's Highway 1.0.3 emits AVX-VNNI code for
// it that Zen 4 lacks.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/simd.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
//
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/buffer.hpp"
#include "kernels/kernels.hpp"
#include "kernels/simd/math-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/simd/vnni.hpp"

// Highway also compiles its baseline, which does not fuse: there is nothing for it here.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON
HWY_BEFORE_NAMESPACE();
namespace stet::kernels::HWY_NAMESPACE {

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

// What the arithmetic sees of stored numbers: themselves, or 16-bit ones widened exactly.
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

// Weights that are needed later, up to two lines a step. The hardware sees no further than the tile that runs, and the
// first tile of a block would wait for memory while the others let it idle.
struct Prefetch {
  const char* at;
  std::size_t bytes;  // a step, at most 128

  HWY_INLINE void step() {
    __builtin_prefetch(at, 0, 3);
    if (bytes > 64) __builtin_prefetch(at + 64, 0, 3);
    at += bytes;
  }
};
// All lines a fixed distance ahead, for a single tile.
template <int kBytes>
struct Stream {
  static constexpr int kAhead = 8192;
  const char* at;
  HWY_INLINE void step() {
    for (int i = 0; i < kBytes; i += 64) __builtin_prefetch(at + i, 0, 3);
    at += kBytes;
  }
};
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

// ---- Matmul

template <class T>
inline constexpr int kPanel = 256 / static_cast<int>(sizeof(T));

template <class T, class S>
struct Strip {
  const S* w;  // of the panel, at its first k and first output
  T* y;        // of the first row
  std::size_t y_stride;
  const T* bias;  // of the first output; null: none, or not yet
  bool first;     // start at 0 rather than at what y holds
};

template <class T, class S, int kRows, int kVecs, class P>
HWY_INLINE void matmul_tile(const Strip<T, S>& s, const T* x, std::size_t x_stride, std::size_t n, P prefetch) {
  const D<T> d;
  const T* xs[kRows];
  const S* ws[kVecs];
  V<T> acc[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) xs[r] = x + static_cast<std::size_t>(r) * x_stride;
  for (int v = 0; v < kVecs; ++v) ws[v] = s.w + v * kN<T>;
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) {
      acc[r][v] = s.first ? hn::Zero(d) : hn::LoadU(d, s.y + static_cast<std::size_t>(r) * s.y_stride + v * kN<T>);
    }
  }
  chains<T, kRows, kVecs>(xs, ws, kPanel<T>, n, acc, prefetch);
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) {
      if (s.bias != nullptr) acc[r][v] = hn::Add(acc[r][v], hn::LoadU(d, s.bias + v * kN<T>));
      hn::StoreU(acc[r][v], d, s.y + static_cast<std::size_t>(r) * s.y_stride + v * kN<T>);
    }
  }
}

// Where the results of some rows and one panel go: the matrix itself, or a buffer where the panel is wider than it.
template <class T>
struct PanelOut {
  T* y;  // of the first row
  std::size_t y_stride;
  const T* bias;
};

// All outputs of a panel for some rows and inputs [k0, k0 + n); `panel` is at k0.
template <class T, class S, class P>
HWY_INLINE void matmul_rows(const Matmul<T>& op, const S* panel, int k0, int n, Range rows, const PanelOut<T>& out,
                            P prefetch) {
  for (int r = rows.begin; r < rows.end; r += kTileRows) {
    const T* x = op.x + static_cast<std::size_t>(r) * op.x_stride + k0;
    T* y = out.y + static_cast<std::size_t>(r - rows.begin) * out.y_stride;
    const T* bias = k0 + n == op.w->in() ? out.bias : nullptr;
    with_rows(rows.end - r, [&](auto count) HWY_ATTR {
      constexpr int kRows = decltype(count)::value;
      constexpr int kVecs = std::min(kRows == 1 ? kRowVecs : kTileVecs, kPanel<T> / kN<T>);
      for (int s = 0; s < kPanel<T>; s += kVecs * kN<T>) {
        matmul_tile<T, S, kRows, kVecs>({panel + s, y + s, out.y_stride, bias == nullptr ? nullptr : bias + s, k0 == 0},
                                        x, op.x_stride, static_cast<std::size_t>(n), prefetch);
      }
    });
    if constexpr (std::is_same_v<P, Prefetch>) prefetch.at += prefetch.bytes * static_cast<std::size_t>(n);
  }
}

// Inputs between two stores of the accumulators: what keeps a panel's part and some rows of x in the second-level
// cache. 1,024 measured 2 to 5 % faster than 128 to 512 on Zen 5.
inline constexpr int kInputBlock = 1024;

// From this many rows on, arithmetic takes longer than memory, and 16-bit weights are widened once into a buffer and
// not anew for each tile of rows.
inline constexpr int kManyRows = 8 * kTileRows;
inline constexpr int kWidenBlock = 1024;

// Fewer rows, but more than a tile: a block that stays in the first-level cache together with the one after it, which
// is fetched meanwhile.
inline constexpr int kStreamBlock = 96;

template <class T, class S>
HWY_INLINE void matmul_panel(const Matmul<T>& op, int p, Range rows, const PanelOut<T>& out) {
  const auto* panel = reinterpret_cast<const S*>(op.w->panel(p));
  const int in = op.w->in(), count = rows.end - rows.begin;
  if (count > kTileRows && count < kManyRows) {
    const std::size_t bytes = sizeof(S) * kPanel<T> / static_cast<std::size_t>((count + kTileRows - 1) / kTileRows);
    for (int k0 = 0; k0 < in; k0 += kStreamBlock) {
      const int n = std::min(in - k0, kStreamBlock);
      const S* block = panel + static_cast<std::size_t>(k0) * kPanel<T>;
      const S* next = block + static_cast<std::size_t>(n) * kPanel<T>;
      if (k0 + n == in) {
        const bool known = op.onwards && p + 1 < op.w->panels();
        next = known ? reinterpret_cast<const S*>(op.w->panel(p + 1)) : nullptr;
      }
      if (next != nullptr) {
        matmul_rows<T, S>(op, block, k0, n, rows, out, Prefetch{reinterpret_cast<const char*>(next), bytes});
      } else {
        matmul_rows<T, S>(op, block, k0, n, rows, out, NoPrefetch());
      }
    }
    return;
  }
  if constexpr (!std::is_same_v<S, T>) {
    // Not on the stack, which a caller may have made small. Without the memory the weights are widened for each tile.
    constexpr std::size_t kBytes = sizeof(T) * kWidenBlock * kPanel<T>;
    auto buffer = count >= kManyRows ? base::Buffer::allocate(kBytes) : Result<base::Buffer>();
    if (buffer && buffer->size() == kBytes) {
      const D<T> d;
      T* wide = buffer->template as<T>();
      for (int k0 = 0; k0 < in; k0 += kWidenBlock) {
        const int n = std::min(in - k0, kWidenBlock);
        const S* from = panel + static_cast<std::size_t>(k0) * kPanel<T>;
        for (int i = 0; i < n * kPanel<T>; i += kN<T>) hn::Store(load<T>(from + i), d, wide + i);
        matmul_rows<T, T>(op, wide, k0, n, rows, out, NoPrefetch());
      }
      return;
    }
  }
  for (int k0 = 0; k0 < in; k0 += kInputBlock) {
    const S* block = panel + static_cast<std::size_t>(k0) * kPanel<T>;
    const int n = std::min(in - k0, kInputBlock);
    if (count <= kTileRows) {
      constexpr int kBytes = sizeof(S) * kPanel<T>;
      matmul_rows<T, S>(op, block, k0, n, rows, out,
                        Stream<kBytes>{reinterpret_cast<const char*>(block) + Stream<kBytes>::kAhead});
    } else {
      matmul_rows<T, S>(op, block, k0, n, rows, out, NoPrefetch());
    }
  }
}

// Calls compute(panel's number, rows, out) for all panels, with a buffer in between where a panel is wider than the
// matrix.
template <class T, class F>
HWY_INLINE void for_each_panel(const Matmul<T>& op, Range rows, Range panels, const F& compute) {
  const int out = op.w->out();
  for (int p = panels.begin; p < panels.end; ++p) {
    const int n0 = p * kPanel<T>;
    const T* bias = op.bias == nullptr ? nullptr : op.bias + n0;
    if (n0 + kPanel<T> <= out) {
      compute(p, rows, PanelOut<T>{op.y + static_cast<std::size_t>(rows.begin) * op.y_stride + n0, op.y_stride, bias});
      continue;
    }
    HWY_ALIGN T buffer[kTileRows * kPanel<T>];
    for (int r = rows.begin; r < rows.end; r += kTileRows) {
      const Range some{r, std::min(rows.end, r + kTileRows)};
      compute(p, some, PanelOut<T>{buffer, static_cast<std::size_t>(kPanel<T>), nullptr});
      for (int i = some.begin; i < some.end; ++i) {
        T* y = op.y + static_cast<std::size_t>(i) * op.y_stride + n0;
        const T* from = buffer + (i - r) * kPanel<T>;
        for (int j = 0; j < out - n0; ++j) y[j] = bias == nullptr ? from[j] : from[j] + bias[j];
      }
    }
  }
}

// ---- Quantised matmul

// 256 bytes hold four inputs of 64 outputs: of int8 one step, of int4 the halves of two.
using U8 = hn::Repartition<std::uint8_t, D<float>>;
using I16 = hn::Repartition<std::int16_t, D<float>>;
using I32 = hn::Repartition<std::int32_t, D<float>>;

// Four activations of one row, for dot().
struct Four {
#if HWY_TARGET == HWY_NEON
  hn::Vec<hn::Repartition<std::int8_t, D<float>>> x;
#else
  hn::Vec<I16> even, odd;
#endif
};

HWY_INLINE Four four(const std::int8_t* x) {
  std::int32_t word;
  std::memcpy(&word, x, sizeof word);
  const auto all = hn::Set(I32(), word);
#if HWY_TARGET == HWY_NEON
  return {hn::BitCast(hn::Repartition<std::int8_t, D<float>>(), all)};
#else
  const auto pairs = hn::BitCast(I16(), all);
  return {hn::ShiftRight<8>(hn::ShiftLeft<8>(pairs)), hn::ShiftRight<8>(pairs)};
#endif
}

// acc + the four products of each output, exactly: 16-bit products of 8-bit numbers never saturate. w is unsigned, at
// most 255.
HWY_INLINE hn::Vec<I32> dot(hn::Vec<I32> acc, hn::Vec<U8> w, const Four& x) {
#if HWY_TARGET == HWY_NEON
  const uint8x16_t u = w.raw;
  const int8x16_t s = x.x.raw;
  const int16x8_t sl = vmovl_s8(vget_low_s8(s)), sh = vmovl_s8(vget_high_s8(s));
  const int16x8_t ul = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(u))),
                  uh = vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(u)));
  const int32x4_t a = vmull_s16(vget_low_s16(ul), vget_low_s16(sl));
  const int32x4_t b = vmull_s16(vget_high_s16(ul), vget_high_s16(sl));
  const int32x4_t c = vmull_s16(vget_low_s16(uh), vget_low_s16(sh));
  const int32x4_t e = vmull_s16(vget_high_s16(uh), vget_high_s16(sh));
  return hn::Vec<I32>(vaddq_s32(acc.raw, vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, e))));
#else
  const auto pairs = hn::BitCast(hn::Repartition<std::uint16_t, D<float>>(), w);
  const auto even =
      hn::BitCast(I16(), hn::And(pairs, hn::Set(hn::Repartition<std::uint16_t, D<float>>(), std::uint16_t{255})));
  const auto odd = hn::BitCast(I16(), hn::ShiftRight<8>(pairs));
  auto unused = hn::Zero(I32());  // x86 sums neighbours into the first sum
  acc = hn::ReorderWidenMulAccumulate(I32(), even, x.even, acc, unused);
  return hn::ReorderWidenMulAccumulate(I32(), odd, x.odd, acc, unused);
#endif
}

// The 64 scales of a group, bf16.
HWY_INLINE V<float> group_scales(const std::byte* group, int v) {
  return load<float>(reinterpret_cast<const hwy::bfloat16_t*>(group) + v * kN<float>);
}

// Rule 6 for kRows rows and kVecs vectors of a panel's outputs, from output `column` on.
template <DType kType, int kRows, int kVecs>
HWY_INLINE void quantized_tile(const Matmul<float>& op, const std::byte* panel, int row, int column,
                               const PanelOut<float>& out, int out_row) {
  const D<float> d;
  constexpr int kGroup = group_size(kType), kSteps = kGroup / (kType == DType::int8 ? 4 : 8);
  constexpr int kZero = kType == DType::int8 ? 128 : 8;
  const QuantizedRows& x = op.quantized;
  V<float> acc[kRows][kVecs];
  for (auto& r : acc) {
    for (auto& a : r) a = hn::Zero(d);
  }
  for (int g = 0; g < x.groups; ++g) {
    const std::byte* group = panel + static_cast<std::size_t>(g) * group_bytes(kType);
    const auto* quants = reinterpret_cast<const std::uint8_t*>(group) + 128 + column * 4;
    hn::Vec<I32> sum[kRows][kVecs];
    const std::int8_t* q[kRows];
    for (int r = 0; r < kRows; ++r) {
      q[r] =
          x.q + (static_cast<std::size_t>(row + r) * static_cast<std::size_t>(x.groups) + static_cast<std::size_t>(g)) *
                    kGroup;
      for (int v = 0; v < kVecs; ++v) sum[r][v] = hn::Zero(I32());
    }
    for (int i = 0; i < kSteps; ++i) {
      hn::Vec<U8> w[kVecs];
      for (int v = 0; v < kVecs; ++v) w[v] = hn::LoadU(U8(), quants + i * 256 + v * kN<float> * 4);
      for (int r = 0; r < kRows; ++r) {
        if constexpr (kType == DType::int8) {
          const Four f = four(q[r] + i * 4);
          for (int v = 0; v < kVecs; ++v) sum[r][v] = dot(sum[r][v], w[v], f);
        } else {
          const Four low = four(q[r] + i * 8), high = four(q[r] + i * 8 + 4);
          const auto mask = hn::Set(U8(), std::uint8_t{15});
          for (int v = 0; v < kVecs; ++v) {
            sum[r][v] = dot(sum[r][v], hn::And(w[v], mask), low);
            sum[r][v] = dot(
                sum[r][v],
                hn::And(
                    hn::BitCast(U8(), hn::ShiftRight<4>(hn::BitCast(hn::Repartition<std::uint16_t, D<float>>(), w[v]))),
                    mask),
                high);
          }
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      const std::size_t at =
          static_cast<std::size_t>(row + r) * static_cast<std::size_t>(x.groups) + static_cast<std::size_t>(g);
      const auto offset = hn::Set(I32(), kZero * x.sums[at]);
      const V<float> scale = hn::Set(d, x.scales[at]);
      for (int v = 0; v < kVecs; ++v) {
        const V<float> exact = hn::ConvertTo(d, hn::Sub(sum[r][v], offset));
        acc[r][v] = hn::MulAdd(exact, hn::Mul(scale, group_scales(group, column / kN<float> + v)), acc[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) {
      const int n = column + v * kN<float>;
      if (out.bias != nullptr) acc[r][v] = hn::Add(acc[r][v], hn::LoadU(d, out.bias + n));
      hn::StoreU(acc[r][v], d, out.y + static_cast<std::size_t>(out_row + r) * out.y_stride + n);
    }
  }
}

template <DType kType>
HWY_INLINE void quantized_panel(const Matmul<float>& op, int p, Range rows, const PanelOut<float>& out) {
  constexpr int kVecs = 2;
  for (int column = 0; column < kPanel<float>; column += kVecs * kN<float>) {
    int r = rows.begin;
    for (; r + 2 <= rows.end; r += 2)
      quantized_tile<kType, 2, kVecs>(op, op.w->panel(p), r, column, out, r - rows.begin);
    for (; r < rows.end; ++r) quantized_tile<kType, 1, kVecs>(op, op.w->panel(p), r, column, out, r - rows.begin);
  }
}

bool quantize(const Quantize& op, Range rows) {
  const D<float> d;
  const int size = op.to.group;
  bool finite = true;
  HWY_ALIGN float rest[64];
  for (int r = rows.begin; r < rows.end; ++r) {
    for (int g = 0; g < op.to.groups; ++g) {
      const std::size_t at =
          static_cast<std::size_t>(r) * static_cast<std::size_t>(op.to.groups) + static_cast<std::size_t>(g);
      const float* x = op.x + static_cast<std::size_t>(r) * op.x_stride + g * size;
      if (op.in - g * size < size) {
        std::fill_n(rest, size, 0.0F);
        std::copy_n(x, op.in - g * size, rest);
        x = rest;
      }
      V<float> most = hn::Zero(d);
      auto good = hn::Eq(most, most);
      for (int i = 0; i < size; i += kN<float>) {
        const V<float> magnitude = hn::Abs(hn::LoadU(d, x + i));
        good = hn::And(good, hn::Le(magnitude, hn::Set(d, std::numeric_limits<float>::max())));
        most = hn::Max(most, magnitude);
      }
      if (!hn::AllTrue(d, good)) {
        finite = false;
        continue;
      }
      const float largest = hn::GetLane(hn::MaxOfLanes(d, most));
      const bool zeros = largest < kSmallestGroup;
      const V<float> inverse = hn::Set(d, zeros ? 0.0F : 127.0F / largest);
      auto sum = hn::Zero(I32());
      std::int8_t* q = op.to.q + at * static_cast<std::size_t>(size);
      for (int i = 0; i < size; i += kN<float>) {
        const auto rounded = hn::NearestInt(hn::Mul(hn::LoadU(d, x + i), inverse));
        sum = hn::Add(sum, rounded);
        hn::StoreU(hn::DemoteTo(hn::Rebind<std::int8_t, I32>(), rounded), hn::Rebind<std::int8_t, I32>(), q + i);
      }
      op.to.scales[at] = zeros ? 0.0F : largest / 127.0F;
      op.to.sums[at] = hn::GetLane(hn::SumOfLanes(I32(), sum));
    }
  }
  return finite;
}

template <class T>
void matmul(const Matmul<T>& op, Range rows, Range panels) {
  const auto with_type = [&](auto stored) HWY_ATTR {
    using S = decltype(stored);
    for_each_panel(op, rows, panels,
                   [&](int p, Range some, const PanelOut<T>& out) HWY_ATTR { matmul_panel<T, S>(op, p, some, out); });
  };
  if constexpr (sizeof(T) == 8) {
    with_type(T());
  } else {
    switch (op.w->type()) {
      case DType::f64:
        return;  // goes with double
      case DType::f32:
        return with_type(T());
      case DType::f16:
        return with_type(hwy::float16_t());
      case DType::bf16:
        return with_type(hwy::bfloat16_t());
      case DType::int8:
        return for_each_panel(op, rows, panels, [&](int p, Range some, const PanelOut<T>& out) HWY_ATTR {
          quantized_panel<DType::int8>(op, p, some, out);
        });
      case DType::int4:
        return for_each_panel(op, rows, panels, [&](int p, Range some, const PanelOut<T>& out) HWY_ATTR {
          quantized_panel<DType::int4>(op, p, some, out);
        });
    }
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

// The sums of a row are chains: several rows at once keep the units busy.
template <class T, int kRows>
HWY_INLINE void layer_norm_rows(const LayerNorm<T>& op, int row) {
  const D<T> d;
  const int whole = op.width / kLanes * kLanes;
  const T* x[kRows];
  T scale[kRows];
  V<T> acc[kRows][kLaneVecs<T>], means[kRows];
  HWY_ALIGN T lane[kLanes];
  for (int r = 0; r < kRows; ++r) {
    x[r] = op.x + static_cast<std::size_t>(row + r) * op.x_stride;
    for (auto& a : acc[r]) a = hn::Zero(d);
  }
  for (int i = 0; i < whole; i += kLanes) {
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kLaneVecs<T>; ++v) acc[r][v] = hn::Add(acc[r][v], hn::LoadU(d, x[r] + i + v * kN<T>));
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kLaneVecs<T>; ++v) hn::Store(acc[r][v], d, lane + v * kN<T>);
    for (int i = whole; i < op.width; ++i) lane[i - whole] = lane[i - whole] + x[r][i];
    means[r] = hn::Set(d, tree_sum(lane) / static_cast<T>(op.width));
    for (auto& a : acc[r]) a = hn::Zero(d);
  }
  for (int i = 0; i < whole; i += kLanes) {
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kLaneVecs<T>; ++v) {
        const V<T> c = hn::Sub(hn::LoadU(d, x[r] + i + v * kN<T>), means[r]);
        acc[r][v] = hn::MulAdd(c, c, acc[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kLaneVecs<T>; ++v) hn::Store(acc[r][v], d, lane + v * kN<T>);
    const T mean = hn::GetLane(means[r]);
    for (int i = whole; i < op.width; ++i) lane[i - whole] = std::fma(x[r][i] - mean, x[r][i] - mean, lane[i - whole]);
    scale[r] = T(1) / std::sqrt(tree_sum(lane) / static_cast<T>(op.width) + op.epsilon);
  }
  for (int r = 0; r < kRows; ++r) {
    T* y = op.y + static_cast<std::size_t>(row + r) * op.y_stride;
    const V<T> scales = hn::Set(d, scale[r]);
    const T mean = hn::GetLane(means[r]);
    for (int i = 0; i < whole; i += kN<T>) {
      const V<T> c = hn::Mul(hn::Sub(hn::LoadU(d, x[r] + i), means[r]), scales);
      hn::StoreU(hn::MulAdd(c, hn::LoadU(d, op.gain + i), hn::LoadU(d, op.bias + i)), d, y + i);
    }
    for (int i = whole; i < op.width; ++i) y[i] = std::fma((x[r][i] - mean) * scale[r], op.gain[i], op.bias[i]);
  }
}

template <class T>
void rms_norm(const LayerNorm<T>& op, int row) {
  const D<T> d;
  const int whole = op.width / kLanes * kLanes;
  const T* x = op.x + static_cast<std::size_t>(row) * op.x_stride;
  T* y = op.y + static_cast<std::size_t>(row) * op.y_stride;
  V<T> acc[kLaneVecs<T>];
  for (auto& a : acc) a = hn::Zero(d);
  for (int i = 0; i < whole; i += kLanes) {
    for (int v = 0; v < kLaneVecs<T>; ++v) {
      const V<T> at = hn::LoadU(d, x + i + v * kN<T>);
      acc[v] = hn::MulAdd(at, at, acc[v]);
    }
  }
  HWY_ALIGN T lane[kLanes];
  for (int v = 0; v < kLaneVecs<T>; ++v) hn::Store(acc[v], d, lane + v * kN<T>);
  for (int i = whole; i < op.width; ++i) lane[i - whole] = std::fma(x[i], x[i], lane[i - whole]);
  const T scale = T(1) / std::sqrt(tree_sum(lane) / static_cast<T>(op.width) + op.epsilon);
  const V<T> scales = hn::Set(d, scale);
  int i = 0;
  for (; i < whole; i += kN<T>) {
    hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, x + i), scales), hn::LoadU(d, op.gain + i)), d, y + i);
  }
  for (; i < op.width; ++i) y[i] = (x[i] * scale) * op.gain[i];
}

template <class T>
void layer_norm(const LayerNorm<T>& op, Range rows) {
  if (op.bias == nullptr) {
    for (int r = rows.begin; r < rows.end; ++r) rms_norm(op, r);
    return;
  }
  constexpr int kTogether = kNormRows;
  int r = rows.begin;
  for (; r + kTogether <= rows.end; r += kTogether) layer_norm_rows<T, kTogether>(op, r);
  for (; r < rows.end; ++r) layer_norm_rows<T, 1>(op, r);
}

// ---- Elementwise

template <class T, class F>
HWY_INLINE void for_each_vector(std::span<T> x, F&& f) {
  const D<T> d;
  std::size_t i = 0;
  for (; i + kN<T> <= x.size(); i += kN<T>) hn::StoreU(f(d, hn::LoadU(d, x.data() + i)), d, x.data() + i);
  if (i == x.size()) return;
  HWY_ALIGN T rest[kN<T>] = {};
  std::copy(x.begin() + static_cast<std::ptrdiff_t>(i), x.end(), rest);
  hn::Store(f(d, hn::Load(d, rest)), d, rest);
  std::copy_n(rest, x.size() - i, x.begin() + static_cast<std::ptrdiff_t>(i));
}

template <class T>
void activate(Activation activation, std::span<T> x) {
  switch (activation) {
    case Activation::gelu_tanh:
      return for_each_vector(x, [](auto d, auto v) HWY_ATTR { return gelu_tanh(d, v); });
    case Activation::gelu_erf:
      return for_each_vector(x, [](auto d, auto v) HWY_ATTR { return gelu_erf(d, v); });
    case Activation::relu:
      return for_each_vector(x, [](auto d, auto v) HWY_ATTR { return relu(d, v); });
    case Activation::silu:
      return for_each_vector(x, [](auto d, auto v) HWY_ATTR { return silu(d, v); });
  }
}

template <class T>
void add(std::span<const T> x, std::span<T> y) {
  const D<T> d;
  std::size_t i = 0;
  for (; i + kN<T> <= y.size(); i += kN<T>) {
    hn::StoreU(hn::Add(hn::LoadU(d, y.data() + i), hn::LoadU(d, x.data() + i)), d, y.data() + i);
  }
  for (; i < y.size(); ++i) y[i] = y[i] + x[i];
}

template <class T>
void multiply(std::span<const T> x, std::span<T> y) {
  const D<T> d;
  std::size_t i = 0;
  for (; i + kN<T> <= y.size(); i += kN<T>) {
    hn::StoreU(hn::Mul(hn::LoadU(d, y.data() + i), hn::LoadU(d, x.data() + i)), d, y.data() + i);
  }
  for (; i < y.size(); ++i) y[i] = y[i] * x[i];
}

template <class T>
void rotate(const Rotate<T>& op, Range rows) {
  const D<T> d;
  const int half = op.head_dim / 2;
  for (int r = rows.begin; r < rows.end; ++r) {
    const std::size_t row = static_cast<std::size_t>(r);
    const T* cos = op.cos + row * static_cast<std::size_t>(half);
    const T* sin = op.sin + row * static_cast<std::size_t>(half);
    for (int h = 0; h < op.heads; ++h) {
      T* x = op.x + row * op.x_stride + static_cast<std::size_t>(h) * static_cast<std::size_t>(op.head_dim);
      int i = 0;
      for (; i + kN<T> <= half; i += kN<T>) {
        const V<T> a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + i + half);
        const V<T> c = hn::LoadU(d, cos + i), s = hn::LoadU(d, sin + i);
        hn::StoreU(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, x + i);
        hn::StoreU(hn::MulAdd(a, s, hn::Mul(b, c)), d, x + i + half);
      }
      for (; i < half; ++i) {
        const T a = x[i], b = x[i + half];
        x[i] = std::fma(-b, sin[i], a * cos[i]);
        x[i + half] = std::fma(a, sin[i], b * cos[i]);
      }
    }
  }
}

// ---- Attention

// One KV head's cells: K as [k_dim][16], V as [16][v_dim].
template <class T>
struct Head {
  const View* view;
  std::size_t offset;

  const T* keys(Pos cell) const {
    return reinterpret_cast<const T*>(
        view->base + view->cells[static_cast<std::size_t>(cell - view->first / kCell)] * view->layout->bytes + offset);
  }
  const T* values(Pos cell) const { return keys(cell) + view->layout->v_offset / sizeof(T); }
};

// Some queries of one KV head, the rows of a tile, and for each the positions [begin, end) that it sees.
template <class T, int kRows>
struct Queries {
  const T* q[kRows];
  Pos begin[kRows], end[kRows];
};

// A block's positions are numbered from its first cell's first position, `origin`.
template <class T, int kRows>
struct BlockScores {
  HWY_ALIGN T score[kRows][kBlock];
};

template <class T, int kRows, int kVecs>
HWY_INLINE void score_vectors(const Head<T>& head, const Queries<T, kRows>& queries, Pos origin, Pos vector, T scale,
                              BlockScores<T, kRows>& s) {
  const D<T> d;
  const T* k[kVecs];
  for (int v = 0; v < kVecs; ++v) {
    const Pos at = origin + (vector + v) * kN<T>;
    k[v] = head.keys(at / kCell) + at % kCell;
  }
  V<T> acc[kRows][kVecs];
  for (auto& row : acc) {
    for (auto& a : row) a = hn::Zero(d);
  }
  chains<T, kRows, kVecs>(queries.q, k, kCell, static_cast<std::size_t>(head.view->layout->k_dim), acc);
  const V<T> scales = hn::Set(d, scale);
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) hn::Store(hn::Mul(acc[r][v], scales), d, s.score[r] + (vector + v) * kN<T>);
  }
}

template <class T, int kRows>
HWY_INLINE void score_block(const Head<T>& head, const Queries<T, kRows>& queries, Pos origin, Pos end, T scale,
                            BlockScores<T, kRows>& s) {
  constexpr int kVecs = kRows <= 2 ? kRowVecs / kRows : kTileVecs;
  const Pos vectors = (end - origin + kCell - 1) / kCell * kLaneVecs<T>;
  Pos v = 0;
  for (; v + kVecs <= vectors; v += kVecs) score_vectors<T, kRows, kVecs>(head, queries, origin, v, scale, s);
  for (; v + 4 <= vectors; v += 4) score_vectors<T, kRows, 4>(head, queries, origin, v, scale, s);
  if (vectors - v == 3) score_vectors<T, kRows, 3>(head, queries, origin, v, scale, s);
  if (vectors - v == 2) score_vectors<T, kRows, 2>(head, queries, origin, v, scale, s);
  if (vectors - v == 1) score_vectors<T, kRows, 1>(head, queries, origin, v, scale, s);
}

// Scores to exp(score - maximum) over the visible positions [begin, end); the block's cells start at `origin`. Slots of
// these cells that are not visible are set to -inf first: their exp is +0, which added to a lane changes no bit.
template <class T>
HWY_INLINE Partial<T> softmax_block(T* score, Pos origin, Pos begin, Pos end) {
  const D<T> d;
  const Pos from = (begin - origin) / kCell * kCell, to = (end - origin + kCell - 1) / kCell * kCell;
  constexpr T kNothing = -std::numeric_limits<T>::infinity();
  for (Pos i = from; i < begin - origin; ++i) score[i] = kNothing;
  for (Pos i = end - origin; i < to; ++i) score[i] = kNothing;
  V<T> most = hn::Load(d, score + from);
  for (Pos i = from + kN<T>; i < to; i += kN<T>) most = hn::Max(most, hn::Load(d, score + i));
  const T maximum = hn::GetLane(hn::MaxOfLanes(d, most));
  const V<T> maxima = hn::Set(d, maximum);
  V<T> acc[kLaneVecs<T>];
  for (auto& a : acc) a = hn::Zero(d);
  for (Pos i = from; i < to; i += kCell) {
    for (int v = 0; v < kLaneVecs<T>; ++v) {
      const V<T> p = exp_of_nonpositive(d, hn::Sub(hn::Load(d, score + i + v * kN<T>), maxima));
      hn::Store(p, d, score + i + v * kN<T>);
      acc[v] = hn::Add(acc[v], p);
    }
  }
  HWY_ALIGN T lane[kLanes];
  for (int v = 0; v < kLaneVecs<T>; ++v) hn::Store(acc[v], d, lane + v * kN<T>);
  return {maximum, tree_sum(lane)};
}

// out[r] += p[r] x V over positions [begin, end), each output one ascending chain. p[r][i] belongs to origin + i.
template <class T, int kRows, int kVecs>
HWY_INLINE void weigh_vectors(const Head<T>& head, const T* const* p, Pos origin, Pos begin, Pos end, int dim,
                              T* const* out) {
  const D<T> d;
  const auto stride = static_cast<std::size_t>(head.view->layout->v_dim);
  V<T> acc[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) acc[r][v] = hn::LoadU(d, out[r] + dim + v * kN<T>);
  }
  for (Pos at = begin; at < end;) {
    const Pos stop = std::min(end, (at / kCell + 1) * kCell);  // the end of this cell
    const T *ps[kRows], *vs[kVecs];
    for (int r = 0; r < kRows; ++r) ps[r] = p[r] + (at - origin);
    for (int v = 0; v < kVecs; ++v) {
      vs[v] = head.values(at / kCell) + static_cast<std::size_t>(at % kCell) * stride +
              static_cast<std::size_t>(dim + v * kN<T>);
    }
    chains<T, kRows, kVecs>(ps, vs, stride, static_cast<std::size_t>(stop - at), acc);
    at = stop;
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) hn::StoreU(acc[r][v], d, out[r] + dim + v * kN<T>);
  }
}

template <class T, int kRows>
HWY_INLINE void weigh(const Head<T>& head, const T* const* p, Pos origin, Pos begin, Pos end, T* const* out) {
  if (begin >= end) return;
  constexpr int kVecs = kRows == 1 ? kRowVecs : kTileVecs;
  const int dims = head.view->layout->v_dim;
  int dim = 0;
  for (; dim + kVecs * kN<T> <= dims; dim += kVecs * kN<T>)
    weigh_vectors<T, kRows, kVecs>(head, p, origin, begin, end, dim, out);
  if constexpr (kRows == 1 && kVecs > 4) {
    for (; dim + 4 * kN<T> <= dims; dim += 4 * kN<T>) weigh_vectors<T, kRows, 4>(head, p, origin, begin, end, dim, out);
  }
  for (; dim + kN<T> <= dims; dim += kN<T>) weigh_vectors<T, kRows, 1>(head, p, origin, begin, end, dim, out);
  // Dims that fill no vector.
  for (; dim < dims; ++dim) {
    for (int r = 0; r < kRows; ++r) {
      T acc = out[r][dim];
      for (Pos at = begin; at < end; ++at) {
        acc = std::fma(p[r][at - origin], head.values(at / kCell)[(at % kCell) * dims + dim], acc);
      }
      out[r][dim] = acc;
    }
  }
}

// One block of positions for a tile of queries. Positions that all rows see go through the tile; what only some see
// (the diagonal of a chunk, the edge of a window) goes row by row, in ascending order around it.
template <class T, int kRows>
HWY_INLINE void attend_block(const Head<T>& head, const Queries<T, kRows>& queries, Pos block, T scale,
                             Partial<T>* partial, T* out) {
  const auto dims = static_cast<std::size_t>(head.view->layout->v_dim);
  Pos begin[kRows], end[kRows], first = block + kBlock, last = block, all_begin = block, all_end = block + kBlock;
  for (int r = 0; r < kRows; ++r) {
    begin[r] = std::max(block, queries.begin[r]);
    end[r] = std::min(block + kBlock, queries.end[r]);
    if (begin[r] < end[r]) {
      first = std::min(first, begin[r]);
      last = std::max(last, end[r]);
    }
    all_begin = std::max(all_begin, begin[r]);
    all_end = std::min(all_end, end[r]);
  }
  const Pos origin = first / kCell * kCell;
  BlockScores<T, kRows> s;
  score_block<T, kRows>(head, queries, origin, last, scale, s);
  const T* p[kRows];
  T* outs[kRows];
  for (int r = 0; r < kRows; ++r) {
    p[r] = s.score[r];
    outs[r] = out + static_cast<std::size_t>(r) * dims;
    std::fill_n(outs[r], dims, T(0));
    // A block that a row sees nothing of takes no part in its merge.
    if (begin[r] < end[r]) partial[r] = softmax_block(s.score[r], origin, begin[r], end[r]);
  }
  if (all_begin >= all_end) {
    for (int r = 0; r < kRows; ++r) weigh<T, 1>(head, p + r, origin, begin[r], end[r], outs + r);
    return;
  }
  for (int r = 0; r < kRows; ++r) weigh<T, 1>(head, p + r, origin, begin[r], all_begin, outs + r);
  weigh<T, kRows>(head, p, origin, all_begin, all_end, outs);
  for (int r = 0; r < kRows; ++r) weigh<T, 1>(head, p + r, origin, all_end, end[r], outs + r);
}

// Calls f(tag, i) for all dims from i on that the tag's vectors hold: whole vectors, then one by one.
template <class T, class F>
HWY_INLINE void for_each_dim(std::size_t dims, const F& f) {
  std::size_t i = 0;
  for (; i + kN<T> <= dims; i += kN<T>) f(D<T>(), i);
  for (; i < dims; ++i) f(hn::CappedTag<T, 1>(), i);
}

// Blocks [begin, end) of `from`, those that a query sees, into `to`.
template <class T>
HWY_INLINE void merge(const PartialBlocks<T>& from, std::size_t query, std::size_t begin, std::size_t end,
                      std::size_t dims, T* to) {
  const D<T> d;
  const auto at = [&](std::size_t b) { return b * from.queries + query; };
  T maximum = from.partials[at(begin)].maximum;
  if (end == begin + 1 && std::isfinite(maximum)) {
    // What follows, for a weight of exp(0) = 1.
    const T* out = from.outs + at(begin) * dims;
    const T sum = from.partials[at(begin)].sum;
    for_each_dim<T>(dims, [&](auto tag, std::size_t i) HWY_ATTR {
      hn::StoreU(hn::Div(hn::Add(hn::LoadU(tag, out + i), hn::Zero(tag)), hn::Set(tag, sum)), tag, to + i);
    });
    return;
  }
  for (std::size_t b = begin; b < end; ++b) {
    const T m = from.partials[at(b)].maximum;
    maximum = m > maximum ? m : maximum;
  }
  T sum = 0;
  std::fill_n(to, dims, T(0));
  for (std::size_t b = begin; b < end; ++b) {
    const auto& partial = from.partials[at(b)];
    const T* out = from.outs + at(b) * dims;
    const T weight = hn::GetLane(exp(d, hn::Set(d, partial.maximum - maximum)));
    sum = std::fma(partial.sum, weight, sum);
    for_each_dim<T>(dims, [&](auto tag, std::size_t i) HWY_ATTR {
      hn::StoreU(hn::MulAdd(hn::LoadU(tag, out + i), hn::Set(tag, weight), hn::LoadU(tag, to + i)), tag, to + i);
    });
  }
  for_each_dim<T>(dims, [&](auto tag, std::size_t i)
                            HWY_ATTR { hn::StoreU(hn::Div(hn::LoadU(tag, to + i), hn::Set(tag, sum)), tag, to + i); });
}

// Calls f(queries, their number within the rows, where their results go) for tiles of the queries of some rows and one
// KV head: the heads of its group within a row, then the next row.
template <class T, class F>
HWY_INLINE void for_each_tile(const Attend<T>& op, Range rows, int kv, const F& f) {
  const CellLayout& layout = *op.view.layout;
  const int group = op.heads / layout.kv_heads, count = (rows.end - rows.begin) * group;
  for (int i = 0; i < count; i += kTileRows) {
    with_rows(std::min(kTileRows, count - i), [&](auto n) HWY_ATTR {
      constexpr int kRows = decltype(n)::value;
      Queries<T, kRows> queries;
      T* to[kRows];
      for (int j = 0; j < kRows; ++j) {
        const int r = rows.begin + (i + j) / group, h = kv * group + (i + j) % group;
        queries.q[j] = op.q + static_cast<std::size_t>(r) * op.q_stride + static_cast<std::size_t>(h) * layout.k_dim;
        queries.begin[j] = op.begin(r);
        queries.end[j] = op.end(r);
        to[j] = op.out + static_cast<std::size_t>(r) * op.out_stride + static_cast<std::size_t>(h) * layout.v_dim;
      }
      f(queries, static_cast<std::size_t>(i), to);
    });
  }
}

template <class T>
Head<T> head_of(const Attend<T>& op, int kv) {
  return {&op.view, static_cast<std::size_t>(kv) * op.view.layout->head_stride};
}

// A cache of the other width is nobody's fast path.
template <class T>
bool has_own_codec(const Attend<T>& op) {
  constexpr Codec kOwn = sizeof(T) == 8 ? Codec::f64 : Codec::f32;
  return op.view.layout->k == kOwn && op.view.layout->v == kOwn;
}

// Some blocks of a tile. Its queries are of `to` from `first_query` on.
template <class T, int kRows>
HWY_INLINE void tile_blocks(const Head<T>& head, const Queries<T, kRows>& queries, Range blocks, T scale,
                            const PartialBlocks<T>& to, std::size_t first_query) {
  const auto dims = static_cast<std::size_t>(head.view->layout->v_dim);
  const Pos first = *std::min_element(queries.begin, queries.begin + kRows) / kBlock;
  const Pos last = (*std::max_element(queries.end, queries.end + kRows) - 1) / kBlock;
  for (Pos b = std::max<Pos>(blocks.begin, first); b < blocks.end && b <= last; ++b) {
    const std::size_t at = static_cast<std::size_t>(b - to.first) * to.queries + first_query;
    attend_block<T, kRows>(head, queries, b * kBlock, scale, to.partials + at, to.outs + at * dims);
  }
}

template <class T>
void attend_blocks(const Attend<T>& op, Range rows, int kv, Range blocks, const PartialBlocks<T>& to) {
  if (!has_own_codec(op)) return targets().back().table<T>().attend_blocks(op, rows, kv, blocks, to);
  const Head<T> head = head_of(op, kv);
  for_each_tile(op, rows, kv, [&](const auto& queries, std::size_t first_query, T* const*) HWY_ATTR {
    tile_blocks(head, queries, blocks, op.scale, to, first_query);
  });
}

template <class T>
void merge_blocks(const Attend<T>& op, Range rows, int kv, const PartialBlocks<T>& from) {
  const auto dims = static_cast<std::size_t>(op.view.layout->v_dim);
  for_each_tile(op, rows, kv, [&](const auto& queries, std::size_t first_query, T* const* to) HWY_ATTR {
    for (std::size_t j = 0; j < std::size(queries.q); ++j) {
      merge(from, first_query + j, static_cast<std::size_t>(queries.begin[j] / kBlock - from.first),
            static_cast<std::size_t>((queries.end[j] - 1) / kBlock - from.first + 1), dims, to[j]);
    }
  });
}

template <class T>
void attend(const Attend<T>& op, Range rows, Range kv_heads) {
  if (!has_own_codec(op)) return targets().back().table<T>().attend(op, rows, kv_heads);
  const auto dims = static_cast<std::size_t>(op.view.layout->v_dim);
  // Blocks' results until they are merged; those of short contexts on the stack.
  constexpr std::size_t kFew = 4, kFewDims = 128;
  HWY_ALIGN T few_outs[kFew * kTileRows * kFewDims];
  Partial<T> few_partials[kFew * kTileRows];
  std::vector<T> more_outs;
  std::vector<Partial<T>> more_partials;
  for (int kv = kv_heads.begin; kv < kv_heads.end; ++kv) {
    const Head<T> head = head_of(op, kv);
    for_each_tile(op, rows, kv, [&](const auto& queries, std::size_t, T* const* to) HWY_ATTR {
      constexpr std::size_t kRows = std::extent_v<decltype(std::remove_cvref_t<decltype(queries)>::q)>;
      const Pos first = *std::min_element(queries.begin, queries.begin + kRows) / kBlock;
      const Pos end = (*std::max_element(queries.end, queries.end + kRows) - 1) / kBlock + 1;
      PartialBlocks<T> blocks{few_outs, few_partials, kRows, first, end - first};
      const auto count = static_cast<std::size_t>(blocks.count);
      if (count > kFew || count * dims > kFew * kFewDims) {
        more_outs.resize(std::max(more_outs.size(), count * kTileRows * dims));
        more_partials.resize(std::max(more_partials.size(), count * kTileRows));
        blocks.outs = more_outs.data();
        blocks.partials = more_partials.data();
      }
      tile_blocks(head, queries, {static_cast<int>(first), static_cast<int>(end)}, op.scale, blocks, 0);
      for (std::size_t j = 0; j < kRows; ++j) {
        merge(blocks, j, static_cast<std::size_t>(queries.begin[j] / kBlock - first),
              static_cast<std::size_t>((queries.end[j] - 1) / kBlock - first + 1), dims, to[j]);
      }
    });
  }
}

const char* const kName =
#if HWY_TARGET == HWY_AVX3
    "avx512";
#elif HWY_TARGET == HWY_AVX2
    "avx2";
#else
    "neon";
#endif

template <class T>
constexpr Table<T> kTable = {matmul<T>,   quantize,  layer_norm<T>, activate<T>,      add<T>,
                             multiply<T>, rotate<T>, attend<T>,     attend_blocks<T>, merge_blocks<T>};
const Target kTarget = {kName, kName, &kTable<float>, &kTable<double>};

}  // namespace stet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // targets that fuse

#if HWY_ONCE
namespace stet::kernels {
namespace {

#if HWY_TARGETS & HWY_AVX2
// clang 14's __builtin_cpu_supports does not know this one.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

#if HWY_TARGETS & HWY_AVX3
// AVX-512 but for the matmuls of int8 and int4.
void matmul_avx512_vnni(const Matmul<float>& op, Range rows, Range panels) {
  if (group_size(op.w->type()) > 1) return matmul_vnni(op, rows, panels);
  N_AVX3::matmul<float>(op, rows, panels);
}
constexpr Table<float> kVnniTable = [] {
  auto table = N_AVX3::kTable<float>;
  table.matmul = matmul_avx512_vnni;
  return table;
}();
const Target kAvx512Vnni = {"avx512-vnni", "avx512", &kVnniTable, &N_AVX3::kTable<double>};
#endif

}  // namespace

std::vector<Target> simd_targets() {
  std::vector<Target> targets;
  // __builtin_cpu_supports, and not Highway's own check, asks for just what these targets use; it also asks the system.
#if HWY_TARGETS & HWY_AVX3
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    if (has_avx512_vnni()) targets.push_back(kAvx512Vnni);
    targets.push_back(N_AVX3::kTarget);
  }
#endif
#if HWY_TARGETS & HWY_AVX2
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c() && __builtin_cpu_supports("bmi2")) {
    targets.push_back(N_AVX2::kTarget);
  }
#endif
#if HWY_TARGETS & HWY_NEON
  targets.push_back(N_NEON::kTarget);  // part of AArch64
#endif
  return targets;
}

}  // namespace stet::kernels
#endif  // HWY_ONCE
