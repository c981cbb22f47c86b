// The numerics contract in plain scalar C++, kept for ever. It is compiled with -mfma on x86 (std::fma as a function
// call is 50 times slower) and lets the compiler vectorise across outputs, which changes no bit. Loops over outputs are
// innermost for that reason only; every output is one chain.
#include "kernels/kernels.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "core/half.hpp"
#include "kernels/ref/math.hpp"

namespace stet::kernels {
namespace {

constexpr int kLanes = 16;
constexpr Pos kBlock = kSoftmaxBlock;

// Rule 2: the fixed tree over the 16 virtual lanes.
template <class T>
T tree_sum(std::array<T, kLanes> lane) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lane[i] = lane[i] + lane[i + half];
  }
  return lane[0];
}

// Adds the bias and leaves out the padding of the last panel.
template <class T>
void store(const Matmul<T>& op, int row, int n0, const T* acc) {
  const int n = std::min(panel_width(op.w->type()), op.w->out() - n0);
  T* y = op.y + row * op.y_stride + n0;
  for (int j = 0; j < n; ++j) y[j] = op.bias != nullptr ? acc[j] + op.bias[n0 + j] : acc[j];
}

// Rule 1. S is what the panel holds, widen(S) its value.
template <class T, class S, class Widen>
void matmul_chains(const Matmul<T>& op, Range rows, Range panels, const Widen& widen) {
  constexpr int kP = 256 / static_cast<int>(sizeof(T));
  for (int p = panels.begin; p < panels.end; ++p) {
    const S* w = reinterpret_cast<const S*>(op.w->panel(p));
    for (int r = rows.begin; r < rows.end; ++r) {
      const T* x = op.x + r * op.x_stride;
      T acc[kP] = {};
      for (int k = 0; k < op.w->in(); ++k) {
        const T xk = x[k];
        for (int j = 0; j < kP; ++j) acc[j] = std::fma(xk, widen(w[static_cast<std::size_t>(k) * kP + j]), acc[j]);
      }
      store(op, r, p * kP, acc);
    }
  }
}

// Rule 6, int8 and int4: exact integer sums, chained over the groups. weight(quants, i, j) is input i of output j.
template <class Weight>
void matmul_groups(const Matmul<float>& op, Range rows, Range panels, const Weight& weight) {
  constexpr int kP = 64;
  const int size = op.quantized.group, groups = op.quantized.groups;
  for (int p = panels.begin; p < panels.end; ++p) {
    for (int r = rows.begin; r < rows.end; ++r) {
      float acc[kP] = {};
      for (int g = 0; g < groups; ++g) {
        const std::size_t at = static_cast<std::size_t>(r) * groups + g;
        const std::byte* group = op.w->panel(p) + static_cast<std::size_t>(g) * group_bytes(op.w->type());
        const auto* scales = reinterpret_cast<const std::uint16_t*>(group);
        const auto* quants = reinterpret_cast<const std::uint8_t*>(group) + 2 * kP;
        const std::int8_t* q = op.quantized.q + at * size;
        for (int j = 0; j < kP; ++j) {
          std::int32_t sum = 0;
          for (int i = 0; i < size; ++i) sum += q[i] * weight(quants, i, j);
          acc[j] = std::fma(static_cast<float>(sum), op.quantized.scales[at] * bf16_to_f32(scales[j]), acc[j]);
        }
      }
      store(op, r, p * kP, acc);
    }
  }
}

template <class T>
void matmul(const Matmul<T>& op, Range rows, Range panels) {
  if constexpr (sizeof(T) == 8) {
    matmul_chains<T, double>(op, rows, panels, [](double w) { return w; });
  } else {
    switch (op.w->type()) {
      case DType::f64:
        return;  // goes with double
      case DType::f32:
        return matmul_chains<T, float>(op, rows, panels, [](float w) { return w; });
      case DType::f16:
        return matmul_chains<T, std::uint16_t>(op, rows, panels, f16_to_f32);
      case DType::bf16:
        return matmul_chains<T, std::uint16_t>(op, rows, panels, bf16_to_f32);
      case DType::int8:
        return matmul_groups(op, rows, panels,
                             [](const std::uint8_t* w, int i, int j) { return w[i / 4 * 256 + j * 4 + i % 4] - 128; });
      case DType::int4:
        return matmul_groups(op, rows, panels, [](const std::uint8_t* w, int i, int j) {
          const int pair = w[i / 8 * 256 + j * 4 + i % 4];
          return (i % 8 < 4 ? pair & 15 : pair >> 4) - 8;
        });
    }
  }
}

bool quantize(const Quantize& op, Range rows) {
  bool finite = true;
  const int size = op.to.group;
  for (int r = rows.begin; r < rows.end; ++r) {
    const float* x = op.x + static_cast<std::size_t>(r) * op.x_stride;
    for (int g = 0; g < op.to.groups; ++g) {
      const std::size_t at = static_cast<std::size_t>(r) * op.to.groups + g;
      const int n = std::min(size, op.in - g * size);
      float most = 0;
      for (int i = 0; i < n; ++i) {
        const float magnitude = std::abs(x[g * size + i]);
        finite = finite && magnitude <= std::numeric_limits<float>::max();
        most = magnitude > most ? magnitude : most;
      }
      const bool zeros = most < kSmallestGroup;
      const float inverse = zeros ? 0.0F : 127.0F / most;
      std::int32_t sum = 0;
      for (int i = 0; i < size; ++i) {
        const auto q =
            i < n && finite ? static_cast<std::int8_t>(std::nearbyint(x[g * size + i] * inverse)) : std::int8_t{0};
        op.to.q[at * size + i] = q;
        sum += q;
      }
      op.to.scales[at] = zeros ? 0.0F : most / 127.0F;
      op.to.sums[at] = sum;
    }
  }
  return finite;
}

template <class T>
void layer_norm(const LayerNorm<T>& op, Range rows) {
  for (int r = rows.begin; r < rows.end; ++r) {
    const T* x = op.x + r * op.x_stride;
    T* y = op.y + r * op.y_stride;
    std::array<T, kLanes> lane{};
    if (op.bias == nullptr) {
      for (int i = 0; i < op.width; ++i) lane[i % kLanes] = std::fma(x[i], x[i], lane[i % kLanes]);
      const T scale = T(1) / std::sqrt(tree_sum(lane) / static_cast<T>(op.width) + op.epsilon);
      for (int i = 0; i < op.width; ++i) y[i] = (x[i] * scale) * op.gain[i];
      continue;
    }
    for (int i = 0; i < op.width; ++i) lane[i % kLanes] = lane[i % kLanes] + x[i];
    const T mean = tree_sum(lane) / static_cast<T>(op.width);
    lane = {};
    for (int i = 0; i < op.width; ++i) {
      const T d = x[i] - mean;
      lane[i % kLanes] = std::fma(d, d, lane[i % kLanes]);
    }
    const T scale = T(1) / std::sqrt(tree_sum(lane) / static_cast<T>(op.width) + op.epsilon);
    for (int i = 0; i < op.width; ++i) y[i] = std::fma((x[i] - mean) * scale, op.gain[i], op.bias[i]);
  }
}

template <class T>
void activate(Activation activation, std::span<T> x) {
  switch (activation) {
    case Activation::gelu_tanh:
      for (T& v : x) v = ref::gelu_tanh(v);
      break;
    case Activation::gelu_erf:
      for (T& v : x) v = ref::gelu_erf(v);
      break;
    case Activation::relu:
      for (T& v : x) v = ref::relu(v);
      break;
    case Activation::silu:
      for (T& v : x) v = ref::silu(v);
      break;
  }
}

template <class T>
void add(std::span<const T> x, std::span<T> y) {
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = y[i] + x[i];
}

template <class T>
void multiply(std::span<const T> x, std::span<T> y) {
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = y[i] * x[i];
}

template <class T>
void rotate(const Rotate<T>& op, Range rows) {
  const int half = op.head_dim / 2;
  for (int r = rows.begin; r < rows.end; ++r) {
    const T* cos = op.cos + static_cast<std::ptrdiff_t>(r) * half;
    const T* sin = op.sin + static_cast<std::ptrdiff_t>(r) * half;
    for (int h = 0; h < op.heads; ++h) {
      T* x = op.x + r * op.x_stride + static_cast<std::size_t>(h) * op.head_dim;
      for (int i = 0; i < half; ++i) {
        const T a = x[i], b = x[i + half];
        x[i] = std::fma(-b, sin[i], a * cos[i]);
        x[i + half] = std::fma(a, sin[i], b * cos[i]);
      }
    }
  }
}

// What a codec stores of a value, as the chain sees it: widened exactly, without its scale.
template <class T, Codec kCodec>
T widened(const std::byte* data, std::size_t index) {
  if constexpr (kCodec == Codec::f64) return static_cast<T>(reinterpret_cast<const double*>(data)[index]);
  if constexpr (kCodec == Codec::f32) return static_cast<T>(reinterpret_cast<const float*>(data)[index]);
  if constexpr (kCodec == Codec::bf16) {
    return static_cast<T>(bf16_to_f32(reinterpret_cast<const std::uint16_t*>(data)[index]));
  }
  if constexpr (kCodec == Codec::f16) {
    return static_cast<T>(f16_to_f32(reinterpret_cast<const std::uint16_t*>(data)[index]));
  }
  return static_cast<T>(reinterpret_cast<const std::int8_t*>(data)[index]);
}
template <class T>
T half_code(std::byte pair, bool high) {
  return static_cast<T>((static_cast<int>(pair) >> (high ? 4 : 0) & 15) - 8);
}

constexpr std::size_t value_bytes(Codec codec) {
  return codec == Codec::f64 ? 8 : codec == Codec::f32 ? 4 : codec == Codec::int8 ? 1 : 2;
}

// Calls f with the codec as a constant.
template <class F>
void with_codec(Codec codec, F f) {
  switch (codec) {
    case Codec::f64:
      return f(CodecTag<Codec::f64>());
    case Codec::f32:
      return f(CodecTag<Codec::f32>());
    case Codec::bf16:
      return f(CodecTag<Codec::bf16>());
    case Codec::f16:
      return f(CodecTag<Codec::f16>());
    case Codec::int8:
      return f(CodecTag<Codec::int8>());
    case Codec::int4:
      return f(CodecTag<Codec::int4>());
  }
}

// Rows of one KV head, as CellLayout lays them out.
struct HeadCells {
  const View* view;
  std::size_t offset;

  const std::byte* head(Pos pos) const { return view->cell(pos / kCell) + offset; }
  static std::size_t slot(Pos pos) { return static_cast<std::size_t>(pos % kCell); }
  float k_scale(Pos pos) const { return reinterpret_cast<const float*>(head(pos) + view->layout->k_scales)[slot(pos)]; }
  float v_scale(Pos pos) const { return reinterpret_cast<const float*>(head(pos) + view->layout->v_scales)[slot(pos)]; }
};

// Value d of the key in a slot, or of a value row of `dim`, from the start of its block.
template <class T, Codec kCodec>
T key(const std::byte* data, std::size_t d, std::size_t slot) {
  if constexpr (kCodec == Codec::int4) return half_code<T>(data[d / 2 * kCell + slot], d % 2 == 1);
  return widened<T, kCodec>(data, d * kCell + slot);
}
template <class T, Codec kCodec>
T value(const std::byte* data, std::size_t d, std::size_t dim) {
  if constexpr (kCodec == Codec::int4) {
    const std::size_t half = (dim + 1) / 2;
    return half_code<T>(data[d % half], d >= half);
  }
  return widened<T, kCodec>(data, d);
}

// The positions that a query sees in one block, ascending.
struct Seen {
  std::array<Pos, kBlock> at;
  std::size_t count = 0;
};

template <class T>
Seen seen_of(const Attend<T>& op, int row, Pos block) {
  Seen seen;
  const Pos begin = block * kBlock, end = std::min(op.end(row), begin + kBlock);
  for (Pos p = begin; p < end; ++p) {
    if (p < op.sinks(row) || p >= op.begin(row)) seen.at[seen.count++] = p;
  }
  return seen;
}

// Slots of a cell that are not seen are computed in their own chains and dropped, so what they hold does not matter.
// The scale of a codec is applied after the chain: rule 5.
template <class T>
void scores(const HeadCells& cells, const T* q, const Seen& seen, T scale, T* score) {
  const auto dim = static_cast<std::size_t>(cells.view->layout->k_dim);
  with_codec(cells.view->layout->k, [&]<Codec kCodec>(CodecTag<kCodec>) {
    for (std::size_t i = 0; i < seen.count;) {
      const Pos cell = seen.at[i] / kCell;
      const std::byte* data = cells.head(seen.at[i]);
      T acc[kCell] = {};
      for (std::size_t d = 0; d < dim; ++d) {
        for (std::size_t j = 0; j < kCell; ++j) acc[j] = std::fma(q[d], key<T, kCodec>(data, d, j), acc[j]);
      }
      for (; i < seen.count && seen.at[i] / kCell == cell; ++i) {
        T sum = acc[HeadCells::slot(seen.at[i])];
        if (has_scale(kCodec)) sum = sum * static_cast<T>(cells.k_scale(seen.at[i]));
        score[i] = sum * scale;
      }
    }
  });
}

// The scale of a codec is folded into p: rule 5.
template <class T>
void weigh(const HeadCells& cells, const Seen& seen, T* p, T* out) {
  const CellLayout& layout = *cells.view->layout;
  const auto dim = static_cast<std::size_t>(layout.v_dim);
  std::fill_n(out, dim, T(0));
  with_codec(layout.v, [&]<Codec kCodec>(CodecTag<kCodec>) {
    const std::size_t row_bytes = kCodec == Codec::int4 ? (dim + 1) / 2 : dim * value_bytes(kCodec);
    for (std::size_t i = 0; i < seen.count; ++i) {
      const Pos pos = seen.at[i];
      const std::byte* data = cells.head(pos) + layout.v_offset + HeadCells::slot(pos) * row_bytes;
      if (has_scale(kCodec)) p[i] = p[i] * static_cast<T>(cells.v_scale(pos));
      for (std::size_t d = 0; d < dim; ++d) out[d] = std::fma(p[i], value<T, kCodec>(data, d, dim), out[d]);
    }
  });
}

template <class T>
Partial<T> attend_block(const HeadCells& cells, const Seen& seen, T* score, T* out) {
  T maximum = score[0];
  for (std::size_t i = 1; i < seen.count; ++i) maximum = score[i] > maximum ? score[i] : maximum;
  std::array<T, kLanes> lane{};
  for (std::size_t i = 0; i < seen.count; ++i) {
    score[i] = ref::exp(score[i] - maximum);
    lane[seen.at[i] % kLanes] = lane[seen.at[i] % kLanes] + score[i];
  }
  weigh(cells, seen, score, out);
  return {maximum, tree_sum(lane)};
}

// Rule 4: the blocks that a row sees, merged in ascending order against the overall maximum.
template <class T>
void merge(const Attend<T>& op, int row, const PartialBlocks<T>& from, std::size_t query, T* out) {
  const auto dim = static_cast<std::size_t>(op.view.layout->v_dim);
  std::vector<std::size_t> blocks;
  for (Pos b = op.first_block(row); b < op.end_block(row); ++b) {
    if (op.sees_block(row, b)) blocks.push_back(static_cast<std::size_t>(b - from.first) * from.queries + query);
  }
  T maximum = from.partials[blocks[0]].maximum;
  for (const std::size_t at : blocks) {
    const T m = from.partials[at].maximum;
    maximum = m > maximum ? m : maximum;
  }
  T sum = 0;
  std::fill_n(out, dim, T(0));
  for (const std::size_t at : blocks) {
    const T weight = ref::exp(from.partials[at].maximum - maximum);
    sum = std::fma(from.partials[at].sum, weight, sum);
    for (std::size_t d = 0; d < dim; ++d) out[d] = std::fma(from.outs[at * dim + d], weight, out[d]);
  }
  for (std::size_t d = 0; d < dim; ++d) out[d] = out[d] / sum;
}

// Calls f(cells, the query's q, what it sees, its place in `of`) for the queries of some rows and the blocks that they
// see.
template <class T, class F>
void for_each_block(const Attend<T>& op, Range rows, int kv, Range blocks, const PartialBlocks<T>& of, const F& f) {
  const CellLayout& layout = *op.view.layout;
  const int group = op.heads / layout.kv_heads;
  const HeadCells cells{&op.view, static_cast<std::size_t>(kv) * layout.head_stride};
  std::size_t query = 0;
  for (int r = rows.begin; r < rows.end; ++r) {
    for (int h = kv * group; h < (kv + 1) * group; ++h, ++query) {
      const T* q = op.q + r * op.q_stride + static_cast<std::size_t>(h) * layout.k_dim;
      for (Pos b = blocks.begin; b < blocks.end; ++b) {
        if (op.sees_block(r, b)) {
          f(cells, q, seen_of(op, r, b), static_cast<std::size_t>(b - of.first) * of.queries + query);
        }
      }
    }
  }
}

template <class T>
void score_blocks(const Attend<T>& op, Range rows, int kv, Range blocks, const PartialBlocks<T>& to) {
  for_each_block(op, rows, kv, blocks, to, [&](const HeadCells& cells, const T* q, const Seen& seen, std::size_t at) {
    scores(cells, q, seen, op.scale, to.scores + at * kBlock);
  });
}

template <class T>
void attend_blocks(const Attend<T>& op, Range rows, int kv, Range blocks, const PartialBlocks<T>& to) {
  const auto dims = static_cast<std::size_t>(op.view.layout->v_dim);
  std::array<T, kBlock> own{};
  for_each_block(op, rows, kv, blocks, to, [&](const HeadCells& cells, const T* q, const Seen& seen, std::size_t at) {
    T* score = to.scores == nullptr ? own.data() : to.scores + at * kBlock;
    if (to.scores == nullptr) scores(cells, q, seen, op.scale, score);
    to.partials[at] = attend_block(cells, seen, score, to.outs + at * dims);
  });
}

template <class T>
void merge_blocks(const Attend<T>& op, Range rows, int kv, const PartialBlocks<T>& from) {
  const int group = op.heads / op.view.layout->kv_heads;
  std::size_t query = 0;
  for (int r = rows.begin; r < rows.end; ++r) {
    for (int h = kv * group; h < (kv + 1) * group; ++h, ++query) {
      merge(op, r, from, query, op.out + r * op.out_stride + static_cast<std::size_t>(h) * op.view.layout->v_dim);
    }
  }
}

template <class T>
void attend(const Attend<T>& op, Range rows, Range kv_heads) {
  const CellLayout& layout = *op.view.layout;
  const auto group = static_cast<std::size_t>(op.heads / layout.kv_heads);
  std::vector<T> outs;
  std::vector<Partial<T>> partials;
  for (int kv = kv_heads.begin; kv < kv_heads.end; ++kv) {
    for (int r = rows.begin; r < rows.end; ++r) {
      const Pos first = op.first_block(r), count = op.end_block(r) - first;
      partials.resize(static_cast<std::size_t>(count) * group);
      outs.resize(partials.size() * static_cast<std::size_t>(layout.v_dim));
      const PartialBlocks<T> blocks{outs.data(), partials.data(), group, first, count};
      attend_blocks(op, {r, r + 1}, kv, {static_cast<int>(first), static_cast<int>(first + count)}, blocks);
      merge_blocks(op, {r, r + 1}, kv, blocks);
    }
  }
}

template <class T>
constexpr Table<T> kRef = {matmul<T>, quantize,  layer_norm<T>,    activate<T>,     add<T>,         multiply<T>,
                           rotate<T>, attend<T>, attend_blocks<T>, merge_blocks<T>, score_blocks<T>};

}  // namespace

const Table<float>& ref_f32() noexcept {
  return kRef<float>;
}
const Table<double>& ref_f64() noexcept {
  return kRef<double>;
}

}  // namespace stet::kernels
