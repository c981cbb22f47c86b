#include "kernels/simd/vnni.hpp"

#if defined(__x86_64__)

#include <immintrin.h>

// Everything below runs with AVX-512; nothing of it is a template or an inline function that another file could share.
#define STET_VNNI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"), always_inline)) static inline
#define STET_VNNI_ENTRY __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))

namespace stet::kernels {

bool has_avx512_vnni() noexcept {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

namespace {

constexpr int kVecs = 4;  // of 16 outputs: a panel
constexpr int kOutputs = 64;
constexpr int kTileRows = 6;  // 24 integer accumulators, 4 weights, an activation: 29 of 32 registers
constexpr int kFewRows = 3;   // up to so many, the float accumulators have room beside the integer ones

// Groups that all rows pass before the next: 3,072 inputs, 192 KB of quants as bytes. Smaller blocks, which a row's
// totals must leave and enter more often, measured slower, down to 12 % at 256 inputs, although those stay in the
// first-level cache.
template <DType kType>
constexpr int kGroupBlock = 3072 / group_size(kType);

template <DType kType>
constexpr int kZero = kType == DType::int8 ? 128 : 8;

// Rows of activations from some group on. Quants of weights are unsigned, of activations signed; the weights' zero
// point is taken off by what a group's sum starts at.
struct Rows {
  const std::int8_t* q;      // of the first row
  const float* scales;       // of the first row
  const std::int32_t* sums;  // of the first row
  int stride;                // groups in a row
};

Rows rows_from(const QuantizedRows& x, int row, int group) {
  const std::size_t at =
      static_cast<std::size_t>(row) * static_cast<std::size_t>(x.groups) + static_cast<std::size_t>(group);
  return {x.q + at * static_cast<std::size_t>(x.group), x.scales + at, x.sums + at, x.groups};
}

STET_VNNI __m512i four(const std::int8_t* q) {
  int word;
  __builtin_memcpy(&word, q, sizeof word);
  return _mm512_set1_epi32(word);
}

// As text: around the intrinsic g++ 12 copies registers.
STET_VNNI void dot(__m512i& sum, __m512i w, __m512i x) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
}

STET_VNNI __m512 bf16_scales(const std::byte* group, int v) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(group) + v);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

// Which of a panel's outputs exist.
struct Lanes {
  __mmask16 of[kVecs];
};

STET_VNNI Lanes lanes_of(int outputs) {
  Lanes lanes;
  for (int v = 0; v < kVecs; ++v) {
    const int left = outputs - v * 16;
    lanes.of[v] = static_cast<__mmask16>(left >= 16 ? 0xffffU : left <= 0 ? 0U : (1U << left) - 1);
  }
  return lanes;
}

// Panel p for one to three rows, which read the weights as they are stored and keep all sums in registers.
template <DType kType, int kRows>
STET_VNNI void few_rows(const Matmul<float>& op, int p, int row) {
  constexpr int kGroup = group_size(kType), kSteps = kType == DType::int8 ? kGroup / 4 : kGroup / 8;
  const Rows x = rows_from(op.quantized, row, 0);
  const long row_bytes = static_cast<long>(x.stride) * kGroup;
  __m512 acc[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) acc[r][v] = _mm512_setzero_ps();
  }
  const std::byte* group = op.w->panel(p);
  for (int g = 0; g < x.stride; ++g, group += group_bytes(kType)) {
    const std::byte* quants = group + 2 * kOutputs;
    __m512i sum[kRows][kVecs];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVecs; ++v) sum[r][v] = _mm512_setzero_si512();
    }
    const std::int8_t* q = x.q + g * kGroup;
    // g++ 12 loses a fifth of the int8 speed when it unrolls this completely, and clang when it does not.
#ifndef __clang__
#pragma GCC unroll 4
#endif
    for (int i = 0; i < kSteps; ++i) {
      __m512i w[kVecs];
      for (int v = 0; v < kVecs; ++v) w[v] = _mm512_loadu_si512(quants + i * 256 + v * 64);
      if constexpr (kType == DType::int8) {
        for (int r = 0; r < kRows; ++r) {
          const __m512i four_x = four(q + r * row_bytes + i * 4);
          for (int v = 0; v < kVecs; ++v) sum[r][v] = _mm512_dpbusd_epi32(sum[r][v], w[v], four_x);
        }
      } else {
        const __m512i mask = _mm512_set1_epi8(15);
        for (int v = 0; v < kVecs; ++v) {
          const __m512i low = _mm512_and_si512(w[v], mask), high = _mm512_and_si512(_mm512_srli_epi16(w[v], 4), mask);
          for (int r = 0; r < kRows; ++r) {
            sum[r][v] = _mm512_dpbusd_epi32(sum[r][v], low, four(q + r * row_bytes + i * 8));
            sum[r][v] = _mm512_dpbusd_epi32(sum[r][v], high, four(q + r * row_bytes + i * 8 + 4));
          }
        }
      }
    }
    __m512 scale[kVecs];
    for (int v = 0; v < kVecs; ++v) scale[v] = bf16_scales(group, v);
    for (int r = 0; r < kRows; ++r) {
      const long at = static_cast<long>(r) * x.stride + g;
      const __m512i zero = _mm512_set1_epi32(kZero<kType> * x.sums[at]);
      const __m512 x_scale = _mm512_set1_ps(x.scales[at]);
      for (int v = 0; v < kVecs; ++v) {
        const __m512 exact = _mm512_cvtepi32_ps(_mm512_sub_epi32(sum[r][v], zero));
        acc[r][v] = _mm512_fmadd_ps(exact, _mm512_mul_ps(x_scale, scale[v]), acc[r][v]);
      }
    }
  }
  const int n0 = p * kOutputs;
  const Lanes lanes = lanes_of(op.w->out() - n0);
  for (int r = 0; r < kRows; ++r) {
    float* y = op.y + static_cast<std::size_t>(row + r) * op.y_stride + n0;
    for (int v = 0; v < kVecs; ++v) {
      if (op.bias != nullptr) {
        acc[r][v] = _mm512_add_ps(acc[r][v], _mm512_maskz_loadu_ps(lanes.of[v], op.bias + n0 + v * 16));
      }
      _mm512_mask_storeu_ps(y + v * 16, lanes.of[v], acc[r][v]);
    }
  }
}

// Some groups of a panel for many rows: quants as bytes, scales as floats.
template <DType kType>
struct Block {
  static constexpr int kQuants = group_size(kType) * kOutputs;  // of a group
  alignas(64) float scales[kGroupBlock<kType>][kOutputs];
  alignas(64) std::byte widened[kType == DType::int4 ? kGroupBlock<kType> * kQuants : 1];
  const std::byte* quants;
  std::size_t stride;  // from group to group
  int groups;
};

template <DType kType>
STET_VNNI void fill(Block<kType>& block, const std::byte* group, int groups) {
  block.groups = groups;
  block.quants = kType == DType::int4 ? block.widened : group + 2 * kOutputs;
  block.stride = kType == DType::int4 ? Block<kType>::kQuants : group_bytes(kType);
  const __m512i mask = _mm512_set1_epi8(15);
  for (int g = 0; g < groups; ++g, group += group_bytes(kType)) {
    for (int v = 0; v < kVecs; ++v) _mm512_store_ps(block.scales[g] + v * 16, bf16_scales(group, v));
    if constexpr (kType == DType::int4) {
      std::byte* to = block.widened + g * Block<kType>::kQuants;
      for (int i = 0; i < group_size(kType) / 8; ++i, to += 512) {
        for (int v = 0; v < kVecs; ++v) {
          const __m512i both = _mm512_loadu_si512(group + 2 * kOutputs + i * 256 + v * 64);
          _mm512_store_si512(to + v * 64, _mm512_and_si512(both, mask));
          _mm512_store_si512(to + v * 64 + 256, _mm512_and_si512(_mm512_srli_epi16(both, 4), mask));
        }
      }
    }
  }
}

// Goes on with the totals of kRows rows over the block's groups. The totals wait in memory while the integer sums have
// the registers.
template <DType kType, int kRows>
STET_VNNI void tile(const Block<kType>& block, const Rows& x, float (&totals)[kRows][kOutputs]) {
  constexpr int kGroup = group_size(kType);
  const long row_bytes = static_cast<long>(x.stride) * kGroup;
  const std::byte* quants = block.quants;
  for (int g = 0; g < block.groups; ++g, quants += block.stride) {
    const std::int8_t* q = x.q + g * kGroup;
    __m512i sum[kRows][kVecs];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m512i start = _mm512_set1_epi32(-kZero<kType> * x.sums[static_cast<long>(r) * x.stride + g]);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) sum[r][v] = start;
    }
#pragma GCC unroll 1
    for (int i = 0; i < kGroup / 4; ++i) {
      __m512i w[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) w[v] = _mm512_loadu_si512(quants + i * 256 + v * 64);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const __m512i four_x = four(q + r * row_bytes + i * 4);
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) dot(sum[r][v], w[v], four_x);
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m512 x_scale = _mm512_set1_ps(x.scales[static_cast<long>(r) * x.stride + g]);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        const __m512 scale = _mm512_mul_ps(x_scale, _mm512_load_ps(block.scales[g] + v * 16));
        float* total = totals[r] + v * 16;
        _mm512_store_ps(total, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r][v]), scale, _mm512_load_ps(total)));
      }
    }
  }
}

// kRows rows from `row` on over the block, whose first group is g0 of panel p; between blocks the totals are in y.
template <DType kType, int kRows>
STET_VNNI void tile_out(const Matmul<float>& op, const Block<kType>& block, int p, int row, int g0) {
  const int n0 = p * kOutputs;
  const Lanes lanes = lanes_of(op.w->out() - n0);
  alignas(64) float totals[kRows][kOutputs];
  // The stores at the end would wait for these lines: 8 % of the time of 512 rows.
  for (int r = 0; r < kRows; ++r) {
    const float* y = op.y + static_cast<std::size_t>(row + r) * op.y_stride + n0;
    for (int v = 0; v < kVecs; ++v) __builtin_prefetch(y + v * 16, 1, 3);
  }
  for (int r = 0; r < kRows; ++r) {
    const float* y = op.y + static_cast<std::size_t>(row + r) * op.y_stride + n0;
    for (int v = 0; v < kVecs; ++v) {
      _mm512_store_ps(totals[r] + v * 16,
                      g0 == 0 ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(lanes.of[v], y + v * 16));
    }
  }
  tile<kType, kRows>(block, rows_from(op.quantized, row, g0), totals);
  const float* bias = g0 + block.groups == op.quantized.groups ? op.bias : nullptr;
  for (int r = 0; r < kRows; ++r) {
    float* y = op.y + static_cast<std::size_t>(row + r) * op.y_stride + n0;
    for (int v = 0; v < kVecs; ++v) {
      __m512 total = _mm512_load_ps(totals[r] + v * 16);
      if (bias != nullptr) total = _mm512_add_ps(total, _mm512_maskz_loadu_ps(lanes.of[v], bias + n0 + v * 16));
      _mm512_mask_storeu_ps(y + v * 16, lanes.of[v], total);
    }
  }
}

template <DType kType>
STET_VNNI_ENTRY void matmul_as(const Matmul<float>& op, Range rows, Range panels) {
  const int groups = op.quantized.groups, count = rows.end - rows.begin;
  for (int p = panels.begin; p < panels.end; ++p) {
    if (count <= kFewRows) {
      if (count == 1) few_rows<kType, 1>(op, p, rows.begin);
      if (count == 2) few_rows<kType, 2>(op, p, rows.begin);
      if (count == 3) few_rows<kType, 3>(op, p, rows.begin);
      continue;
    }
    Block<kType> block;
    for (int g0 = 0; g0 < groups; g0 += kGroupBlock<kType>) {
      const int left = groups - g0;
      fill(block, op.w->panel(p) + static_cast<std::size_t>(g0) * group_bytes(kType),
           left < kGroupBlock<kType> ? left : kGroupBlock<kType>);
      int r = rows.begin;
      for (; r + kTileRows <= rows.end; r += kTileRows) tile_out<kType, kTileRows>(op, block, p, r, g0);
      switch (rows.end - r) {
        case 1:
          tile_out<kType, 1>(op, block, p, r, g0);
          break;
        case 2:
          tile_out<kType, 2>(op, block, p, r, g0);
          break;
        case 3:
          tile_out<kType, 3>(op, block, p, r, g0);
          break;
        case 4:
          tile_out<kType, 4>(op, block, p, r, g0);
          break;
        case 5:
          tile_out<kType, 5>(op, block, p, r, g0);
          break;
        default:
          break;
      }
    }
  }
}

}  // namespace

void matmul_vnni(const Matmul<float>& op, Range rows, Range panels) {
  if (op.w->type() == DType::int8) {
    matmul_as<DType::int8>(op, rows, panels);
  } else {
    matmul_as<DType::int4>(op, rows, panels);
  }
}

}  // namespace stet::kernels

#else

namespace stet::kernels {
bool has_avx512_vnni() noexcept {
  return false;
}
void matmul_vnni(const Matmul<float>&, Range, Range) {}
}  // namespace stet::kernels

#endif
