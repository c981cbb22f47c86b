// Matmul by rules 1 and 6 on vectors: lanes along the outputs, one chain each; of int8 and int4 exact integer sums of
// groups. Included once for each target by simd.cpp.
#if defined(STET_SIMD_MATMUL_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef STET_SIMD_MATMUL_INL
#undef STET_SIMD_MATMUL_INL
#else
#define STET_SIMD_MATMUL_INL
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/buffer.hpp"
#include "kernels/kernels.hpp"
#include "kernels/simd/math-inl.hpp"
#include "kernels/simd/tile-inl.hpp"

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON
HWY_BEFORE_NAMESPACE();
namespace stet::kernels::HWY_NAMESPACE {

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

}  // namespace stet::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // targets that fuse

#endif  // per-target include guard
