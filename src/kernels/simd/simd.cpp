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
#include "kernels/simd/attend-inl.hpp"
#include "kernels/simd/math-inl.hpp"
#include "kernels/simd/simd.hpp"
#include "kernels/simd/tile-inl.hpp"
#include "kernels/simd/vnni.hpp"

// Highway also compiles its baseline, which does not fuse: there is nothing for it here.
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

// ---- Norms

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

const char* const kName =
#if HWY_TARGET == HWY_AVX3
    "avx512";
#elif HWY_TARGET == HWY_AVX2
    "avx2";
#else
    "neon";
#endif

template <class T>
constexpr Table<T> kTable = {matmul<T>, quantize,  layer_norm<T>,    activate<T>,     add<T>,         multiply<T>,
                             rotate<T>, attend<T>, attend_blocks<T>, merge_blocks<T>, score_blocks<T>};
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
