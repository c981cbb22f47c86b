#include "kernels/simd/vnni.hpp"

#if defined(__x86_64__)

#include <immintrin.h>

#include "base/buffer.hpp"

// Everything below runs with AVX-512; nothing of it is a template or an inline function that another file could share.
#define STET_VNNI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"), always_inline)) static inline
// A function of its own, so that its registers do not depend on what surrounds it: inlined into all the others, g++ 12
// has spilled a sixth of the speed away.
#define STET_VNNI_ALONE __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"), noinline))

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

// How a tile finds its weights, group by group: as they are stored, bf16 scales before quants; or int4 with a byte for
// each quant and float scales.
struct Stored8 {
  static constexpr int kGroup = group_size(DType::int8), kZero = 128;
  static constexpr bool kNibbles = false, kFloatScales = false;
};
struct Stored4 {
  static constexpr int kGroup = group_size(DType::int4), kZero = 8;
  static constexpr bool kNibbles = true, kFloatScales = false;
};
struct Widened4 {
  static constexpr int kGroup = group_size(DType::int4), kZero = 8;
  static constexpr bool kNibbles = false, kFloatScales = true;
};
template <class W>
constexpr int kScaleBytes = kOutputs*(W::kFloatScales ? 4 : 2);
template <class W>
constexpr std::size_t kGroupBytes = kScaleBytes<W> + W::kGroup* kOutputs / (W::kNibbles ? 2 : 1);
static_assert(kGroupBytes<Stored8> == group_bytes(DType::int8) && kGroupBytes<Stored4> == group_bytes(DType::int4));

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

// The same, of four activations in memory for all outputs.
STET_VNNI void dot_four(__m512i& sum, __m512i w, const std::int8_t* q) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*reinterpret_cast<const int*>(q)));
}

template <class W>
STET_VNNI __m512 scales_of(const std::byte* group, int v) {
  if constexpr (W::kFloatScales) return _mm512_loadu_ps(reinterpret_cast<const float*>(group) + v * 16);
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
template <class W, int kRows>
STET_VNNI_ALONE void few_rows(const Matmul<float>& op, int p, int row) {
  constexpr int kGroup = W::kGroup, kSteps = W::kNibbles ? kGroup / 8 : kGroup / 4;
  const Rows x = rows_from(op.quantized, row, 0);
  const long row_bytes = static_cast<long>(x.stride) * kGroup;
  __m512 acc[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) acc[r][v] = _mm512_setzero_ps();
  }
  const std::byte* group = op.w->panel(p);
  for (int g = 0; g < x.stride; ++g, group += kGroupBytes<W>) {
    const std::byte* quants = group + kScaleBytes<W>;
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
      if constexpr (!W::kNibbles) {
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
    for (int v = 0; v < kVecs; ++v) scale[v] = scales_of<W>(group, v);
    for (int r = 0; r < kRows; ++r) {
      const long at = static_cast<long>(r) * x.stride + g;
      const __m512i zero = _mm512_set1_epi32(W::kZero * x.sums[at]);
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

// Weights that are needed later, a few lines at a time. The hardware sees no further than the tile that runs, and the
// first tile of a block would wait for memory while the others let it idle.
struct Prefetch {
  const std::byte* at;
  long lines;  // a step
};

STET_VNNI void step(Prefetch& ahead) {
  for (long i = 0; i < ahead.lines; ++i, ahead.at += 64) __builtin_prefetch(ahead.at, 0, 3);
}

// Goes on with the totals of kRows rows over `groups` groups of a panel. The compiler lets the totals wait in memory
// while the integer sums have the registers.
template <class W, int kRows>
STET_VNNI void tile(const std::byte* group, int groups, const Rows& x, Prefetch prefetch,
                    __m512 (&total)[kRows][kVecs]) {
  constexpr int kGroup = W::kGroup, kSteps = W::kNibbles ? kGroup / 8 : kGroup / 4;
  const long row_bytes = static_cast<long>(x.stride) * kGroup;
  for (int g = 0; g < groups; ++g, group += kGroupBytes<W>) {
    step(prefetch);
    const std::byte* quants = group + kScaleBytes<W>;
    const std::int8_t* q = x.q + g * kGroup;
    __m512i sum[kRows][kVecs];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m512i start = _mm512_set1_epi32(-W::kZero * x.sums[static_cast<long>(r) * x.stride + g]);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) sum[r][v] = start;
    }
#pragma GCC unroll 1
    for (int i = 0; i < kSteps; ++i) {
      if constexpr (!W::kNibbles) {
        __m512i w[kVecs];
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) w[v] = _mm512_loadu_si512(quants + i * 256 + v * 64);
#pragma GCC unroll 6
        for (int r = 0; r < kRows; ++r) {
          const __m512i four_x = four(q + r * row_bytes + i * 4);
#pragma GCC unroll 4
          for (int v = 0; v < kVecs; ++v) dot(sum[r][v], w[v], four_x);
        }
      } else {
        const __m512i mask = _mm512_set1_epi8(15);
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) {
          const __m512i both = _mm512_loadu_si512(quants + i * 256 + v * 64);
          const __m512i low = _mm512_and_si512(both, mask);
          const __m512i high = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
#pragma GCC unroll 6
          for (int r = 0; r < kRows; ++r) {
            dot_four(sum[r][v], low, q + r * row_bytes + i * 8);
            dot_four(sum[r][v], high, q + r * row_bytes + i * 8 + 4);
          }
        }
      }
    }
    __m512 w_scale[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) w_scale[v] = scales_of<W>(group, v);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m512 x_scale = _mm512_set1_ps(x.scales[static_cast<long>(r) * x.stride + g]);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        total[r][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r][v]), _mm512_mul_ps(x_scale, w_scale[v]), total[r][v]);
      }
    }
  }
}

// Groups of int4 with a byte for each quant: unpacking them anew for each tile costs 10 % of 512 rows.
STET_VNNI void widen(const std::byte* group, int groups, std::byte* to) {
  const __m512i mask = _mm512_set1_epi8(15);
  for (int g = 0; g < groups; ++g, group += kGroupBytes<Stored4>, to += kGroupBytes<Widened4>) {
    for (int v = 0; v < kVecs; ++v)
      _mm512_store_ps(reinterpret_cast<float*>(to) + v * 16, scales_of<Stored4>(group, v));
    std::byte* quants = to + kScaleBytes<Widened4>;
    for (int i = 0; i < Stored4::kGroup / 8; ++i, quants += 512) {
      for (int v = 0; v < kVecs; ++v) {
        const __m512i both = _mm512_loadu_si512(group + kScaleBytes<Stored4> + i * 256 + v * 64);
        _mm512_store_si512(quants + v * 64, _mm512_and_si512(both, mask));
        _mm512_store_si512(quants + v * 64 + 256, _mm512_and_si512(_mm512_srli_epi16(both, 4), mask));
      }
    }
  }
}

// Groups [begin, end) of panel p, whose weights are at `group`, and what to prefetch meanwhile.
struct Block {
  int p, begin, end;
  const std::byte* group;
  Prefetch prefetch;
};

// kRows rows from `row` on over a block; between blocks the totals are in y.
template <class W, int kRows>
STET_VNNI_ALONE void tile_out(const Matmul<float>& op, const Block& block, int row) {
  const int n0 = block.p * kOutputs;
  const Lanes lanes = lanes_of(op.w->out() - n0);
  __m512 total[kRows][kVecs];
  // The stores at the end would wait for these lines: 8 % of the time of 512 rows.
  for (int r = 0; r < kRows; ++r) {
    const float* y = op.y + static_cast<std::size_t>(row + r) * op.y_stride + n0;
    for (int v = 0; v < kVecs; ++v) __builtin_prefetch(y + v * 16, 1, 3);
  }
  for (int r = 0; r < kRows; ++r) {
    const float* y = op.y + static_cast<std::size_t>(row + r) * op.y_stride + n0;
    for (int v = 0; v < kVecs; ++v) {
      total[r][v] = block.begin == 0 ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(lanes.of[v], y + v * 16);
    }
  }
  tile<W, kRows>(block.group, block.end - block.begin, rows_from(op.quantized, row, block.begin), block.prefetch,
                 total);
  const float* bias = block.end == op.quantized.groups ? op.bias : nullptr;
  for (int r = 0; r < kRows; ++r) {
    float* y = op.y + static_cast<std::size_t>(row + r) * op.y_stride + n0;
    for (int v = 0; v < kVecs; ++v) {
      if (bias != nullptr) {
        total[r][v] = _mm512_add_ps(total[r][v], _mm512_maskz_loadu_ps(lanes.of[v], bias + n0 + v * 16));
      }
      _mm512_mask_storeu_ps(y + v * 16, lanes.of[v], total[r][v]);
    }
  }
}

template <class W>
STET_VNNI void tile_rows(const Matmul<float>& op, const Block& block, Range rows) {
  switch (rows.end - rows.begin) {
    case 1:
      return tile_out<W, 1>(op, block, rows.begin);
    case 2:
      return tile_out<W, 2>(op, block, rows.begin);
    case 3:
      return tile_out<W, 3>(op, block, rows.begin);
    case 4:
      return tile_out<W, 4>(op, block, rows.begin);
    case 5:
      return tile_out<W, 5>(op, block, rows.begin);
    default:
      return tile_out<W, kTileRows>(op, block, rows.begin);
  }
}

template <class W>
STET_VNNI void block_rows(const Matmul<float>& op, Block block, Range rows) {
  for (int r = rows.begin; r < rows.end; r += kTileRows) {
    tile_rows<W>(op, block, {r, r + kTileRows < rows.end ? r + kTileRows : rows.end});
    block.prefetch.at += block.prefetch.lines * (block.end - block.begin) * 64;
  }
}

// Panel p for rows so few that memory bounds them.
template <class W>
STET_VNNI void stream_panel(const Matmul<float>& op, int p, Range rows) {
  constexpr int kBlock = 256 / W::kGroup;
  const int groups = op.quantized.groups;
  const long tiles = (rows.end - rows.begin + kTileRows - 1) / kTileRows;
  const std::byte* group = op.w->panel(p);
  for (int g = 0; g < groups; g += kBlock, group += kBlock * kGroupBytes<W>) {
    Block block{p, g, g + kBlock < groups ? g + kBlock : groups, group, {nullptr, 0}};
    if (block.end < groups) {
      block.prefetch.at = group + kBlock * kGroupBytes<W>;
    } else if (op.onwards && p + 1 < op.w->panels()) {
      block.prefetch.at = op.w->panel(p + 1);
    }
    if (block.prefetch.at != nullptr)
      block.prefetch.lines = (static_cast<long>(kGroupBytes<W>) / 64 + tiles - 1) / tiles;
    block_rows<W>(op, block, rows);
  }
}

// Panel p for rows that are bound by arithmetic, in blocks of 3,072 inputs: smaller ones, which a row's totals must
// leave and enter more often, measured slower, down to 12 % at 256 inputs, although those stay in the first-level
// cache. `widened`: room for a block of int4 with a byte for each quant, or null.
constexpr int kInputBlock = 3072;

template <class W>
STET_VNNI void panel(const Matmul<float>& op, int p, Range rows, std::byte* widened) {
  constexpr int kBlock = kInputBlock / W::kGroup;
  const int groups = op.quantized.groups;
  const std::byte* group = op.w->panel(p);
  for (int g = 0; g < groups; g += kBlock, group += kBlock * kGroupBytes<W>) {
    Block block{p, g, g + kBlock < groups ? g + kBlock : groups, group, {nullptr, 0}};
    if constexpr (W::kNibbles) {
      if (widened != nullptr) {
        widen(group, block.end - block.begin, widened);
        block.group = widened;
        block_rows<Widened4>(op, block, rows);
        continue;
      }
    }
    block_rows<W>(op, block, rows);
  }
}

constexpr int kManyRows = 48;  // from here on arithmetic takes longer than memory

template <class W>
STET_VNNI_ALONE void matmul_as(const Matmul<float>& op, Range rows, Range panels) {
  const int count = rows.end - rows.begin;
  // Not on the stack, which a caller may have made small. Without the memory int4 is unpacked for each tile.
  constexpr std::size_t kWidened = kInputBlock / Widened4::kGroup * kGroupBytes<Widened4>;
  auto buffer = base::Buffer::allocate(W::kNibbles && count >= kManyRows ? kWidened : 0);
  std::byte* widened = buffer && buffer->size() == kWidened ? buffer->data() : nullptr;
  for (int p = panels.begin; p < panels.end; ++p) {
    if (count == 1) {
      few_rows<W, 1>(op, p, rows.begin);
    } else if (count == 2) {
      few_rows<W, 2>(op, p, rows.begin);
    } else if (count == 3) {
      few_rows<W, 3>(op, p, rows.begin);
    } else if (count < kManyRows) {
      stream_panel<W>(op, p, rows);
    } else {
      panel<W>(op, p, rows, widened);
    }
  }
}

}  // namespace

void matmul_vnni(const Matmul<float>& op, Range rows, Range panels) {
  if (op.w->type() == DType::int8) {
    matmul_as<Stored8>(op, rows, panels);
  } else {
    matmul_as<Stored4>(op, rows, panels);
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
