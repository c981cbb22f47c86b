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

// What the cells hold for one KV head. K of a cell: [k_dim][16]; V: [16][v_dim]. A codec of another width than T is
// widened or rounded per element as it is read.
template <class T, class S>
struct HeadRows {
  const View* view;
  std::size_t head_offset;

  const std::byte* cell(Pos index) const {
    return view->base + view->cells[static_cast<std::size_t>(index - view->first / kCell)] * view->layout->bytes +
           head_offset;
  }
  const S* keys(Pos index) const { return reinterpret_cast<const S*>(cell(index)); }
  const S* values(Pos index) const { return reinterpret_cast<const S*>(cell(index) + view->layout->v_offset); }
};

// Scores of positions [begin, end), all in one block; score[i] belongs to position begin + i. Slots of a cell that are
// not asked for are computed in their own chains and dropped, so what they hold does not matter.
template <class T, class S>
void scores(const HeadRows<T, S>& rows, const T* q, Pos begin, Pos end, T scale, T* score) {
  const int dim = rows.view->layout->k_dim;
  for (Pos c = begin / kCell; c * kCell < end; ++c) {
    const S* k = rows.keys(c);
    T acc[kCell] = {};
    for (int d = 0; d < dim; ++d) {
      for (int j = 0; j < kCell; ++j) acc[j] = std::fma(q[d], static_cast<T>(k[d * kCell + j]), acc[j]);
    }
    for (int j = 0; j < kCell; ++j) {
      const Pos p = c * kCell + j;
      if (p >= begin && p < end) score[p - begin] = acc[j] * scale;
    }
  }
}

template <class T, class S>
Partial<T> attend_block(const HeadRows<T, S>& rows, const T* q, Pos begin, Pos end, T scale, T* out) {
  const int dim = rows.view->layout->v_dim;
  std::array<T, kBlock> score;
  scores(rows, q, begin, end, scale, score.data());
  const Pos n = end - begin;
  T maximum = score[0];
  for (Pos i = 1; i < n; ++i) maximum = score[i] > maximum ? score[i] : maximum;
  std::array<T, kLanes> lane{};
  for (Pos i = 0; i < n; ++i) {
    score[i] = ref::exp(score[i] - maximum);
    lane[(begin + i) % kLanes] = lane[(begin + i) % kLanes] + score[i];
  }
  std::fill_n(out, dim, T(0));
  for (Pos i = 0; i < n; ++i) {
    const S* v = rows.values((begin + i) / kCell) + ((begin + i) % kCell) * dim;
    for (int d = 0; d < dim; ++d) out[d] = std::fma(score[i], static_cast<T>(v[d]), out[d]);
  }
  return {maximum, tree_sum(lane)};
}

// Rule 4: the blocks that a query sees, [begin, end), merged in ascending order against the overall maximum.
template <class T>
void merge(const PartialBlocks<T>& from, std::size_t query, std::size_t begin, std::size_t end, std::size_t dim,
           T* out) {
  const auto at = [&](std::size_t b) { return b * from.queries + query; };
  T maximum = from.partials[at(begin)].maximum;
  for (std::size_t b = begin; b < end; ++b) {
    const T m = from.partials[at(b)].maximum;
    maximum = m > maximum ? m : maximum;
  }
  T sum = 0;
  std::fill_n(out, dim, T(0));
  for (std::size_t b = begin; b < end; ++b) {
    const T weight = ref::exp(from.partials[at(b)].maximum - maximum);
    sum = std::fma(from.partials[at(b)].sum, weight, sum);
    for (std::size_t d = 0; d < dim; ++d) out[d] = std::fma(from.outs[at(b) * dim + d], weight, out[d]);
  }
  for (std::size_t d = 0; d < dim; ++d) out[d] = out[d] / sum;
}

template <class T, class S>
void blocks_as(const Attend<T>& op, Range rows, int kv, Range blocks, const PartialBlocks<T>& to) {
  const CellLayout& layout = *op.view.layout;
  const int group = op.heads / layout.kv_heads;
  const HeadRows<T, S> stored{&op.view, static_cast<std::size_t>(kv) * layout.head_stride};
  std::size_t query = 0;
  for (int r = rows.begin; r < rows.end; ++r) {
    for (int h = kv * group; h < (kv + 1) * group; ++h, ++query) {
      const T* q = op.q + r * op.q_stride + static_cast<std::size_t>(h) * layout.k_dim;
      for (Pos b = blocks.begin; b < blocks.end; ++b) {
        const Pos begin = std::max(op.begin(r), b * kBlock), end = std::min(op.end(r), (b + 1) * kBlock);
        if (begin >= end) continue;
        const std::size_t at = static_cast<std::size_t>(b - to.first) * to.queries + query;
        to.partials[at] =
            attend_block(stored, q, begin, end, op.scale, to.outs + at * static_cast<std::size_t>(layout.v_dim));
      }
    }
  }
}

template <class T>
void attend_blocks(const Attend<T>& op, Range rows, int kv_head, Range blocks, const PartialBlocks<T>& to) {
  if (op.view.layout->k == Codec::f64) {
    blocks_as<T, double>(op, rows, kv_head, blocks, to);
  } else {
    blocks_as<T, float>(op, rows, kv_head, blocks, to);
  }
}

template <class T>
void merge_blocks(const Attend<T>& op, Range rows, int kv, const PartialBlocks<T>& from) {
  const CellLayout& layout = *op.view.layout;
  const int group = op.heads / layout.kv_heads;
  std::size_t query = 0;
  for (int r = rows.begin; r < rows.end; ++r) {
    for (int h = kv * group; h < (kv + 1) * group; ++h, ++query) {
      merge(from, query, static_cast<std::size_t>(op.begin(r) / kBlock - from.first),
            static_cast<std::size_t>((op.end(r) - 1) / kBlock - from.first + 1), static_cast<std::size_t>(layout.v_dim),
            op.out + r * op.out_stride + static_cast<std::size_t>(h) * layout.v_dim);
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
      const Pos first = op.begin(r) / kBlock, count = (op.end(r) - 1) / kBlock - first + 1;
      partials.resize(static_cast<std::size_t>(count) * group);
      outs.resize(partials.size() * static_cast<std::size_t>(layout.v_dim));
      const PartialBlocks<T> blocks{outs.data(), partials.data(), group, first, count};
      attend_blocks(op, {r, r + 1}, kv, {static_cast<int>(first), static_cast<int>(first + count)}, blocks);
      merge_blocks(op, {r, r + 1}, kv, blocks);
    }
  }
}

template <class T>
constexpr Table<T> kRef = {matmul<T>,   quantize,  layer_norm<T>, activate<T>,      add<T>,
                           multiply<T>, rotate<T>, attend<T>,     attend_blocks<T>, merge_blocks<T>};

}  // namespace

const Table<float>& ref_f32() noexcept {
  return kRef<float>;
}
const Table<double>& ref_f64() noexcept {
  return kRef<double>;
}

}  // namespace stet::kernels
