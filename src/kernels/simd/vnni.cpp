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

struct Tile {
  const std::byte* panel;
  const std::int8_t* q;      // of the first row
  const float* scales;       // of the first row
  const std::int32_t* sums;  // of the first row
  int groups;
};

STET_VNNI __m512i four(const std::int8_t* q) {
  int word;
  __builtin_memcpy(&word, q, sizeof word);
  return _mm512_set1_epi32(word);
}

// acc[r][v] for kRows rows, over all groups. Quants of weights are unsigned, of activations signed; the weights' zero
// point is taken off the sums.
template <DType kType, int kRows>
STET_VNNI void tile(const Tile& t, __m512 (&acc)[kRows][kVecs]) {
  constexpr int kGroup = group_size(kType), kSteps = kType == DType::int8 ? kGroup / 4 : kGroup / 8;
  constexpr int kZero = kType == DType::int8 ? 128 : 8;
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) acc[r][v] = _mm512_setzero_ps();
  }
  const std::byte* group = t.panel;
  for (int g = 0; g < t.groups; ++g, group += group_bytes(kType)) {
    const std::byte* quants = group + 2 * kOutputs;
    __m512i sum[kRows][kVecs];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVecs; ++v) sum[r][v] = _mm512_setzero_si512();
    }
    const std::int8_t* q = t.q + g * kGroup;
    const long row = static_cast<long>(t.groups) * kGroup;
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
      const long at = static_cast<long>(r) * t.groups + g;
      const __m512i zero = _mm512_set1_epi32(kZero * t.sums[at]);
      const __m512 x_scale = _mm512_set1_ps(t.scales[at]);
      for (int v = 0; v < kVecs; ++v) {
        const __m512 exact = _mm512_cvtepi32_ps(_mm512_sub_epi32(sum[r][v], zero));
        acc[r][v] = _mm512_fmadd_ps(exact, _mm512_mul_ps(x_scale, scale[v]), acc[r][v]);
      }
    }
  }
}

template <DType kType, int kRows>
STET_VNNI void tile_out(const Matmul<float>& op, int p, int row) {
  const QuantizedRows& x = op.quantized;
  const long at = static_cast<long>(row) * x.groups;
  __m512 acc[kRows][kVecs];
  tile<kType, kRows>({op.w->panel(p), x.q + at * x.group, x.scales + at, x.sums + at, x.groups}, acc);
  const int n0 = p * kOutputs, n = op.w->out() - n0;
  for (int r = 0; r < kRows; ++r) {
    float* y = op.y + static_cast<std::size_t>(row + r) * op.y_stride + n0;
    for (int v = 0; v < kVecs; ++v) {
      const int left = n - v * 16;
      if (left <= 0) break;
      const __mmask16 lanes = left >= 16 ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1U << left) - 1);
      __m512 value = acc[r][v];
      if (op.bias != nullptr) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(lanes, op.bias + n0 + v * 16));
      _mm512_mask_storeu_ps(y + v * 16, lanes, value);
    }
  }
}

template <DType kType>
STET_VNNI_ENTRY void matmul_as(const Matmul<float>& op, Range rows, Range panels) {
  for (int p = panels.begin; p < panels.end; ++p) {
    int r = rows.begin;
    for (; r + kTileRows <= rows.end; r += kTileRows) tile_out<kType, kTileRows>(op, p, r);
    if (rows.end - r == 2) tile_out<kType, 2>(op, p, r);
    if (rows.end - r == 1) tile_out<kType, 1>(op, p, r);
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
