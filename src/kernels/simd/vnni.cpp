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

constexpr int kVecs = 4;      // of 16 outputs: a panel
constexpr int kTileRows = 3;  // 12 integer and 12 float accumulators, 4 weights, 1 to 3 activations: 32 registers
constexpr int kOutputs = 64;

// Groups that stay in the first-level cache while all rows pass: 16 KB of int8, 18 KB of int4.
template <DType kType>
constexpr int kGroupBlock = kType == DType::int8 ? 4 : 16;

struct Tile {
  const std::byte* panel;    // from here on, everything at the block's first group
  const std::int8_t* q;      // of the first row
  const float* scales;       // of the first row
  const std::int32_t* sums;  // of the first row
  int groups;                // in the block
  int stride;                // groups in a row
};

STET_VNNI __m512i four(const std::int8_t* q) {
  int word;
  __builtin_memcpy(&word, q, sizeof word);
  return _mm512_set1_epi32(word);
}

// Goes on with acc[r][v] for kRows rows, over the block's groups. Quants of weights are unsigned, of activations
// signed; the weights' zero point is taken off the sums.
template <DType kType, int kRows>
STET_VNNI void tile(const Tile& t, __m512 (&acc)[kRows][kVecs]) {
  constexpr int kGroup = group_size(kType), kSteps = kType == DType::int8 ? kGroup / 4 : kGroup / 8;
  constexpr int kZero = kType == DType::int8 ? 128 : 8;
  const std::byte* group = t.panel;
  for (int g = 0; g < t.groups; ++g, group += group_bytes(kType)) {
    const std::byte* quants = group + 2 * kOutputs;
    __m512i sum[kRows][kVecs];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVecs; ++v) sum[r][v] = _mm512_setzero_si512();
    }
    const std::int8_t* q = t.q + g * kGroup;
    const long row = static_cast<long>(t.stride) * kGroup;
    // g++ 12 loses a fifth of the int8 speed when it unrolls this completely, and clang when it does not.
#ifndef __clang__
#pragma GCC unroll 4
#endif
    for (int i = 0; i < kSteps; ++i) {
      __m512i w[kVecs];
      for (int v = 0; v < kVecs; ++v) w[v] = _mm512_loadu_si512(quants + i * 256 + v * 64);
      if constexpr (kType == DType::int8) {
        for (int r = 0; r < kRows; ++r) {
          const __m512i x = four(q + r * row + i * 4);
          for (int v = 0; v < kVecs; ++v) sum[r][v] = _mm512_dpbusd_epi32(sum[r][v], w[v], x);
        }
      } else {
        const __m512i mask = _mm512_set1_epi8(15);
        for (int v = 0; v < kVecs; ++v) {
          const __m512i low = _mm512_and_si512(w[v], mask), high = _mm512_and_si512(_mm512_srli_epi16(w[v], 4), mask);
          for (int r = 0; r < kRows; ++r) {
            sum[r][v] = _mm512_dpbusd_epi32(sum[r][v], low, four(q + r * row + i * 8));
            sum[r][v] = _mm512_dpbusd_epi32(sum[r][v], high, four(q + r * row + i * 8 + 4));
          }
        }
      }
    }
    __m512 scale[kVecs];
    for (int v = 0; v < kVecs; ++v) {
      const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(group) + v);
      scale[v] = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
    }
    for (int r = 0; r < kRows; ++r) {
      const long at = static_cast<long>(r) * t.stride + g;
      const __m512i zero = _mm512_set1_epi32(kZero * t.sums[at]);
      const __m512 x_scale = _mm512_set1_ps(t.scales[at]);
      for (int v = 0; v < kVecs; ++v) {
        const __m512 exact = _mm512_cvtepi32_ps(_mm512_sub_epi32(sum[r][v], zero));
        acc[r][v] = _mm512_fmadd_ps(exact, _mm512_mul_ps(x_scale, scale[v]), acc[r][v]);
      }
    }
  }
}

// kRows rows from `row` on, groups [g0, g1) of panel p; between blocks the accumulators wait in y.
template <DType kType, int kRows>
STET_VNNI void tile_out(const Matmul<float>& op, int p, int row, int g0, int g1) {
  const QuantizedRows& x = op.quantized;
  const long at = static_cast<long>(row) * x.groups + g0;
  const int n0 = p * kOutputs, n = op.w->out() - n0;
  __mmask16 lanes[kVecs];
  for (int v = 0; v < kVecs; ++v) {
    const int left = n - v * 16;
    lanes[v] = static_cast<__mmask16>(left >= 16 ? 0xffffU : left <= 0 ? 0U : (1U << left) - 1);
  }
  __m512 acc[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    const float* y = op.y + static_cast<std::size_t>(row + r) * op.y_stride + n0;
    for (int v = 0; v < kVecs; ++v) {
      acc[r][v] = g0 == 0 ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(lanes[v], y + v * 16);
    }
  }
  tile<kType, kRows>({op.w->panel(p) + static_cast<std::size_t>(g0) * group_bytes(kType), x.q + at * x.group,
                      x.scales + at, x.sums + at, g1 - g0, x.groups},
                     acc);
  const float* bias = g1 == x.groups ? op.bias : nullptr;
  for (int r = 0; r < kRows; ++r) {
    float* y = op.y + static_cast<std::size_t>(row + r) * op.y_stride + n0;
    for (int v = 0; v < kVecs; ++v) {
      if (bias != nullptr) acc[r][v] = _mm512_add_ps(acc[r][v], _mm512_maskz_loadu_ps(lanes[v], bias + n0 + v * 16));
      _mm512_mask_storeu_ps(y + v * 16, lanes[v], acc[r][v]);
    }
  }
}

template <DType kType>
STET_VNNI_ENTRY void matmul_as(const Matmul<float>& op, Range rows, Range panels) {
  const int groups = op.quantized.groups;
  // Few rows pass once: blocks would only cost.
  const int block = rows.end - rows.begin <= kTileRows ? groups : kGroupBlock<kType>;
  for (int p = panels.begin; p < panels.end; ++p) {
    for (int g0 = 0; g0 < groups; g0 += block) {
      const int g1 = g0 + block < groups ? g0 + block : groups;
      int r = rows.begin;
      for (; r + kTileRows <= rows.end; r += kTileRows) tile_out<kType, kTileRows>(op, p, r, g0, g1);
      if (rows.end - r == 2) tile_out<kType, 2>(op, p, r, g0, g1);
      if (rows.end - r == 1) tile_out<kType, 1>(op, p, r, g0, g1);
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
