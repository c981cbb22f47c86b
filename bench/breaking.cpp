#include "breaking.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__AVX512VNNI__) && defined(__AVX512BF16__) && defined(__AVX512BW__)
#include <immintrin.h>

namespace stet::bench {

using kernels::Packed;
using kernels::Range;

bool can_break() noexcept {
  return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16") &&
         __builtin_cpu_supports("avx512bw");
}

namespace {

constexpr int kPanel = 64;
constexpr int kZero8 = 128, kZero4 = 8;

const std::uint8_t* bytes_of(const std::byte* p) {
  return reinterpret_cast<const std::uint8_t*>(p);
}
__m512 bf16_to_floats(const void* p) {
  const __m256i halves = _mm256_loadu_si256(static_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
__m512 half_to_floats(const void* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}

// Quant of output n, input k, as stored by Packed.
std::uint8_t quant_of(const Packed& w, int n, int k) {
  const int group = kernels::group_size(w.type()), in_group = k % group;
  const auto* q =
      bytes_of(w.panel(n / kPanel)) + static_cast<std::size_t>(k / group) * kernels::group_bytes(w.type()) + 2 * kPanel;
  if (w.type() == DType::int8) return q[in_group / 4 * 4 * kPanel + n % kPanel * 4 + in_group % 4];
  const std::uint8_t both = q[in_group / 8 * 4 * kPanel + n % kPanel * 4 + in_group % 4];
  return in_group % 8 < 4 ? both & 15 : both >> 4;
}

}  // namespace

Result<RowMajor> row_major(const Packed& keep, const std::vector<float>& values) {
  RowMajor w;
  w.type = keep.type();
  w.in = keep.in();
  w.out = keep.out();
  const auto in = static_cast<std::size_t>(w.in), out = static_cast<std::size_t>(w.out);
  // A vector more than is used: the last one of a row is loaded whole.
  auto weights = base::Buffer::allocate(in * out * static_cast<std::size_t>(bits_of(w.type)) / 8 + 64);
  if (!weights) return pass(weights);
  w.weights = std::move(*weights);
  w.weights.prefer_huge_pages();
  const int group = kernels::group_size(w.type);
  if (group > 1) {
    auto scales = base::Buffer::allocate(out * in / static_cast<std::size_t>(group) * 2 + 64);
    if (!scales) return pass(scales);
    w.scales = std::move(*scales);
  }
  auto* bytes = w.weights.as<std::uint8_t>();
  for (int n = 0; n < w.out; ++n) {
    const std::size_t row = static_cast<std::size_t>(n) * in;
    if (w.type == DType::f32) std::memcpy(w.weights.as<float>() + row, values.data() + row, in * sizeof(float));
    if (w.type == DType::f16) {
      for (std::size_t k = 0; k < in; ++k) w.weights.as<std::uint16_t>()[row + k] = _cvtss_sh(values[row + k], 0);
    }
    for (int k = 0; group > 1 && k < w.in; ++k) {
      const std::uint8_t q = quant_of(keep, n, k);
      const auto at = static_cast<std::size_t>(k);
      if (w.type == DType::int8) {
        bytes[row + at] = q;
      } else if (k % 128 < 64) {  // 64 bytes hold 128 inputs: the first 64 in the low halves
        bytes[row / 2 + at / 128 * 64 + at % 64] = q;
      } else {
        bytes[row / 2 + at / 128 * 64 + at % 64] |= static_cast<std::uint8_t>(q << 4);
      }
      if (k % group == 0) {
        std::memcpy(w.scales.as<std::uint16_t>() + row / static_cast<std::size_t>(group) + k / group,
                    keep.panel(n / kPanel) + static_cast<std::size_t>(k / group) * kernels::group_bytes(w.type) +
                        n % kPanel * 2,
                    2);
      }
    }
  }
  return w;
}

void correct(const OneRow& op, std::int32_t* corrections) {
  const int zero = op.w->type == DType::int8 ? kZero8 : kZero4;
  for (int i = 0; i < op.w->in / 4; ++i) {
    const std::int8_t* q = op.quantized.q + i * 4;
    corrections[i] = -zero * (q[0] + q[1] + q[2] + q[3]);
  }
}

namespace {

// Rows are too short for the machine to see where a stream goes.
constexpr std::ptrdiff_t kAhead = 4096;
void prefetch(const void* at) {
  _mm_prefetch(static_cast<const char*>(at) + kAhead, _MM_HINT_T0);
}

template <class Load>
float dot_floats(const Load& load, const float* x, int in) {
  __m512 acc[4] = {};
  int k = 0;
  for (; k + 64 <= in; k += 64) {
    for (int v = 0; v < 4; ++v) acc[v] = _mm512_fmadd_ps(load(k + v * 16), _mm512_loadu_ps(x + k + v * 16), acc[v]);
  }
  for (; k + 16 <= in; k += 16) acc[0] = _mm512_fmadd_ps(load(k), _mm512_loadu_ps(x + k), acc[0]);
  return _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(acc[0], acc[1]), _mm512_add_ps(acc[2], acc[3])));
}

// The sums of the lanes of four vectors.
__m128 lane_sums(const __m512 (&v)[4]) {
  __m256 half[4];
  for (int i = 0; i < 4; ++i) half[i] = _mm256_add_ps(_mm512_castps512_ps256(v[i]), _mm512_extractf32x8_ps(v[i], 1));
  const __m256 sums = _mm256_hadd_ps(_mm256_hadd_ps(half[0], half[1]), _mm256_hadd_ps(half[2], half[3]));
  return _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
}

// Products of the scales of four groups, in each quarter of a vector.
__m512 four_scales(const std::uint16_t* w, __m128 x) {
  const __m128i halves = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(w));
  return _mm512_broadcast_f32x4(_mm_mul_ps(_mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(halves), 16)), x));
}

struct Quants {
  const std::uint8_t* w;
  const std::uint16_t* scales;
  std::size_t row_bytes, row_scales;
};
Quants quants(const OneRow& op, int n) {
  const auto in = static_cast<std::size_t>(op.w->in), row = static_cast<std::size_t>(n);
  const std::size_t row_bytes = in * static_cast<std::size_t>(bits_of(op.w->type)) / 8;
  const std::size_t row_scales = in / static_cast<std::size_t>(kernels::group_size(op.w->type));
  return {op.w->weights.as<std::uint8_t>() + row * row_bytes, op.w->scales.as<std::uint16_t>() + row * row_scales,
          row_bytes, row_scales};
}

// Outputs n to n + 3.
__m128 dot_int8(const OneRow& op, int n) {
  const Quants at = quants(op, n);
  const std::int8_t* q = op.quantized.q;
  __m512 acc[4] = {};
  for (int g = 0; g < op.w->in / 64; g += 4) {
    const __m128 x_scales = _mm_loadu_ps(op.quantized.scales + g);
    __m512 scale[4];
#pragma GCC unroll 4
    for (std::size_t r = 0; r < 4; ++r) scale[r] = four_scales(at.scales + r * at.row_scales + g, x_scales);
    const auto group = [&](auto i) {
      constexpr int kGroup = decltype(i)::value;
      const int k = (g + kGroup) * 64;
      const __m512i start = _mm512_loadu_si512(op.corrections + k / 4), x = _mm512_loadu_si512(q + k);
#pragma GCC unroll 4
      for (std::size_t r = 0; r < 4; ++r) {
        const std::uint8_t* w = at.w + r * at.row_bytes + k;
        prefetch(w);
        const __m512i sum = _mm512_dpbusd_epi32(start, _mm512_loadu_si512(w), x);
        acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_permute_ps(scale[r], kGroup * 0x55), acc[r]);
      }
    };
    group(std::integral_constant<int, 0>());
    group(std::integral_constant<int, 1>());
    group(std::integral_constant<int, 2>());
    group(std::integral_constant<int, 3>());
  }
  return lane_sums(acc);
}

__m128 dot_int4(const OneRow& op, int n) {
  const Quants at = quants(op, n);
  const __m512i mask = _mm512_set1_epi8(15);
  // Eight lanes hold the sums of a group of 32.
  const __m512i first = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(2));
  __m512 acc[4] = {}, more[4] = {};
  for (int g = 0; g < op.w->in / 32; g += 4) {
    const int k = g * 32;
    const __m128 x_scales = _mm_loadu_ps(op.quantized.scales + g);
    const __m512i start_low = _mm512_loadu_si512(op.corrections + k / 4);
    const __m512i start_high = _mm512_loadu_si512(op.corrections + k / 4 + 16);
    const __m512i x_low = _mm512_loadu_si512(op.quantized.q + k), x_high = _mm512_loadu_si512(op.quantized.q + k + 64);
#pragma GCC unroll 4
    for (std::size_t r = 0; r < 4; ++r) {
      const __m512 scale = four_scales(at.scales + r * at.row_scales + g, x_scales);
      const std::uint8_t* w = at.w + r * at.row_bytes + k / 2;
      prefetch(w);
      const __m512i both = _mm512_loadu_si512(w);
      const __m512i low = _mm512_dpbusd_epi32(start_low, _mm512_and_si512(both, mask), x_low);
      const __m512i high = _mm512_dpbusd_epi32(start_high, _mm512_and_si512(_mm512_srli_epi16(both, 4), mask), x_high);
      acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(low), _mm512_permutexvar_ps(first, scale), acc[r]);
      more[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), _mm512_permutexvar_ps(second, scale), more[r]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) acc[r] = _mm512_add_ps(acc[r], more[r]);
  return lane_sums(acc);
}

}  // namespace

void multiply_row(const OneRow& op, Range part) {
  const auto in = static_cast<std::size_t>(op.w->in);
  if (op.w->type == DType::f32 || op.w->type == DType::f16) {
    for (int n = part.begin; n < part.end; ++n) {
      const std::size_t row = static_cast<std::size_t>(n) * in;
      if (op.w->type == DType::f32) {
        const float* w = op.w->weights.as<float>() + row;
        op.y[n] = dot_floats(
            [w](int k) {
              prefetch(w + k);
              return _mm512_loadu_ps(w + k);
            },
            op.x, op.w->in);
      } else {
        const auto* w = op.w->weights.as<std::uint16_t>() + row;
        op.y[n] = dot_floats(
            [w](int k) {
              if (k % 32 == 0) prefetch(w + k);
              return half_to_floats(w + k);
            },
            op.x, op.w->in);
      }
    }
    return;
  }
  for (int n = part.begin; n < part.end; n += 4) {
    // The last output of a matrix may have no three others after it: then it is taken with those before it.
    const int from = std::min(n, op.w->out - 4);
    _mm_storeu_ps(op.y + from, op.w->type == DType::int8 ? dot_int8(op, from) : dot_int4(op, from));
  }
}

// ---- Many rows

namespace {

constexpr int kBlock = 1024;  // inputs that are summed apart: a panel's part of them stays in the second-level cache

// y tile (+)= x tile x w block. `step` instructions: multiply-adds of floats or of pairs of bf16.
template <class Fma>
void tile(const float* x, std::size_t x_stride, const float* w, int steps, bool first, float* y, std::size_t y_stride,
          const Fma& fma) {
  __m512 acc[kTileRows][4];
#pragma GCC unroll 6
  for (auto& row : acc) {
#pragma GCC unroll 4
    for (__m512& a : row) a = _mm512_setzero_ps();
  }
  for (int k = 0; k < steps; ++k) {
    const __m512 b[4] = {_mm512_loadu_ps(w + k * kPanel), _mm512_loadu_ps(w + k * kPanel + 16),
                         _mm512_loadu_ps(w + k * kPanel + 32), _mm512_loadu_ps(w + k * kPanel + 48)};
#pragma GCC unroll 6
    for (int r = 0; r < kTileRows; ++r) {
      const __m512 a = _mm512_set1_ps(x[static_cast<std::size_t>(r) * x_stride + static_cast<std::size_t>(k)]);
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) acc[r][v] = fma(a, b[v], acc[r][v]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      float* to = y + static_cast<std::size_t>(r) * y_stride + v * 16;
      _mm512_storeu_ps(to, first ? acc[r][v] : _mm512_add_ps(_mm512_loadu_ps(to), acc[r][v]));
    }
  }
}

// Twenty-four integer sums in registers, the float totals in memory.
template <int kGroup>
void grouped_tile(const kernels::QuantizedRows& x, int row, const std::uint8_t* quants, const float* scales, int zero,
                  float* y, std::size_t y_stride) {
  const auto row_bytes = static_cast<std::size_t>(x.groups) * kGroup;
  alignas(64) float totals[kTileRows * kPanel] = {};
  for (int g = 0; g < x.groups; ++g, quants += kGroup * kPanel, scales += kPanel) {
    const std::size_t at =
        static_cast<std::size_t>(row) * static_cast<std::size_t>(x.groups) + static_cast<std::size_t>(g);
    const std::int8_t* q = x.q + static_cast<std::size_t>(row) * row_bytes + static_cast<std::size_t>(g) * kGroup;
    __m512i sum[kTileRows][4];
#pragma GCC unroll 6
    for (int r = 0; r < kTileRows; ++r) {
      const __m512i start =
          _mm512_set1_epi32(-zero * x.sums[at + static_cast<std::size_t>(r) * static_cast<std::size_t>(x.groups)]);
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) sum[r][v] = start;
    }
#pragma GCC unroll 1
    for (int i = 0; i < kGroup / 4; ++i) {
      const std::uint8_t* w = quants + i * 4 * kPanel;
      const __m512i b[4] = {_mm512_loadu_si512(w), _mm512_loadu_si512(w + 64), _mm512_loadu_si512(w + 128),
                            _mm512_loadu_si512(w + 192)};
#pragma GCC unroll 6
      for (int r = 0; r < kTileRows; ++r) {
        int word;
        std::memcpy(&word, q + static_cast<std::size_t>(r) * row_bytes + i * 4, sizeof word);
        const __m512i a = _mm512_set1_epi32(word);
        // As text: g++ 12 copies registers around the intrinsic.
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) asm("vpdpbusd %2, %1, %0" : "+v"(sum[r][v]) : "v"(b[v]), "v"(a));
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < kTileRows; ++r) {
      const __m512 x_scale =
          _mm512_set1_ps(x.scales[at + static_cast<std::size_t>(r) * static_cast<std::size_t>(x.groups)]);
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        const __m512 scale = _mm512_mul_ps(x_scale, _mm512_load_ps(scales + v * 16));
        float* total = totals + r * kPanel + v * 16;
        _mm512_store_ps(total, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r][v]), scale, _mm512_load_ps(total)));
      }
    }
  }
  for (int r = 0; r < kTileRows; ++r)
    std::memcpy(y + static_cast<std::size_t>(r) * y_stride, totals + r * kPanel, 4 * kPanel);
}

constexpr int kMostInputs = 3072;

// A panel's quants as bytes and its scales as floats, once for all rows.
template <DType kType>
void grouped_panel(const ManyRows& op, int panel) {
  constexpr int kGroup = kernels::group_size(kType);
  const int groups = op.w->groups();
  alignas(64) static thread_local std::uint8_t to[kMostInputs * kPanel];
  alignas(64) static thread_local float scales[kMostInputs / 32 * kPanel];
  const __m512i mask = _mm512_set1_epi8(15);
  for (int g = 0; g < groups; ++g) {
    const std::byte* from = op.w->panel(panel) + static_cast<std::size_t>(g) * kernels::group_bytes(kType);
    for (int v = 0; v < 4; ++v) _mm512_storeu_ps(scales + g * kPanel + v * 16, bf16_to_floats(from + v * 32));
    const auto* q = bytes_of(from) + 2 * kPanel;
    if constexpr (kType == DType::int8) {
      std::memcpy(to + g * kGroup * kPanel, q, kGroup * kPanel);
    } else {
      for (int i = 0; i < kGroup / 8; ++i) {
        for (int v = 0; v < 4; ++v) {
          const __m512i both = _mm512_loadu_si512(q + i * 256 + v * 64);
          std::uint8_t* at = to + g * kGroup * kPanel + i * 512 + v * 64;
          _mm512_storeu_si512(at, _mm512_and_si512(both, mask));
          _mm512_storeu_si512(at + 256, _mm512_and_si512(_mm512_srli_epi16(both, 4), mask));
        }
      }
    }
  }
  constexpr int kZero = kType == DType::int8 ? kZero8 : kZero4;
  for (int r = 0; r < op.rows; r += kTileRows) {
    grouped_tile<kGroup>(op.quantized, r, to, scales, kZero,
                         op.y + static_cast<std::size_t>(r) * op.y_stride + static_cast<std::size_t>(panel) * kPanel,
                         op.y_stride);
  }
}

template <DType kType>
void float_panel(const ManyRows& op, int panel) {
  alignas(64) float wide[kBlock * kPanel];
  const int in = op.w->in();
  for (int k0 = 0; k0 < in; k0 += kBlock) {
    const int n = std::min(kBlock, in - k0);
    const float* w = wide;
    if constexpr (kType == DType::f32) {
      w = reinterpret_cast<const float*>(op.w->panel(panel)) + static_cast<std::size_t>(k0) * kPanel;
    } else {
      const auto* from =
          reinterpret_cast<const std::uint16_t*>(op.w->panel(panel)) + static_cast<std::size_t>(k0) * kPanel;
      for (int i = 0; i < n * kPanel; i += 16) _mm512_store_ps(wide + i, half_to_floats(from + i));
    }
    for (int r = 0; r < op.rows; r += kTileRows) {
      tile(op.x + static_cast<std::size_t>(r) * op.x_stride + k0, op.x_stride, w, n, k0 == 0,
           op.y + static_cast<std::size_t>(r) * op.y_stride + static_cast<std::size_t>(panel) * kPanel, op.y_stride,
           [](__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); });
    }
  }
}

void pairs_panel(const ManyRows& op, int panel) {
  const int pairs = op.w->in() / 2;
  const auto* w = reinterpret_cast<const float*>(op.pairs) +
                  static_cast<std::size_t>(panel) * static_cast<std::size_t>(pairs) * kPanel;
  for (int k0 = 0; k0 < pairs; k0 += kBlock) {
    for (int r = 0; r < op.rows; r += kTileRows) {
      tile(op.x + static_cast<std::size_t>(r) * op.x_stride + k0, op.x_stride,
           w + static_cast<std::size_t>(k0) * kPanel, std::min(kBlock, pairs - k0), k0 == 0,
           op.y + static_cast<std::size_t>(r) * op.y_stride + static_cast<std::size_t>(panel) * kPanel, op.y_stride,
           [](__m512 a, __m512 b, __m512 c) {
             asm("vdpbf16ps %2, %1, %0" : "+v"(c) : "v"(b), "v"(a));
             return c;
           });
    }
  }
}

}  // namespace

void round_rows(const float* x, int in, Range rows, float* pairs) {
  for (int r = rows.begin; r < rows.end; ++r) {
    const float* from = x + static_cast<std::size_t>(r) * static_cast<std::size_t>(in);
    float* to = pairs + static_cast<std::size_t>(r) * static_cast<std::size_t>(in / 2);
    for (int k = 0; k < in; k += 16) {
      const __m256bh halves = _mm512_cvtneps_pbh(_mm512_loadu_ps(from + k));
      std::memcpy(to + k / 2, &halves, 32);
    }
  }
}

Result<base::Buffer> pair_up(const Packed& bf16) {
  auto buffer = base::Buffer::allocate(static_cast<std::size_t>(bf16.panels()) * bf16.panel_bytes());
  if (!buffer) return buffer;
  for (int p = 0; p < bf16.panels(); ++p) {
    const auto* from = reinterpret_cast<const std::uint16_t*>(bf16.panel(p));
    auto* to = buffer->as<std::uint16_t>() + static_cast<std::size_t>(p) * bf16.panel_bytes() / 2;
    for (int k = 0; k < bf16.in(); ++k) {
      for (int n = 0; n < kPanel; ++n) to[k / 2 * 2 * kPanel + n * 2 + k % 2] = from[k * kPanel + n];
    }
  }
  return buffer;
}

void multiply_rows(const ManyRows& op, int panel) {
  switch (op.w->type()) {
    case DType::f32:
      return float_panel<DType::f32>(op, panel);
    case DType::f16:
      return float_panel<DType::f16>(op, panel);
    case DType::bf16:
      return pairs_panel(op, panel);
    case DType::int8:
      return grouped_panel<DType::int8>(op, panel);
    default:
      return grouped_panel<DType::int4>(op, panel);
  }
}

}  // namespace stet::bench

#else

namespace stet::bench {
bool can_break() noexcept {
  return false;
}
Result<RowMajor> row_major(const kernels::Packed&, const std::vector<float>&) {
  return RowMajor{};
}
void multiply_row(const OneRow&, kernels::Range) {}
void correct(const OneRow&, std::int32_t*) {}
void round_rows(const float*, int, kernels::Range, float*) {}
Result<base::Buffer> pair_up(const kernels::Packed&) {
  return base::Buffer{};
}
void multiply_rows(const ManyRows&, int) {}
}  // namespace stet::bench

#endif
