// The arithmetic of Stet, one struct a call and one table a target. Every function computes part of a result (some
// panels, some rows, some heads), single-threaded; run.hpp spreads the parts over threads. How the work is cut is free;
// the order within each output is fixed by docs/numerics.md, so every table gives the same bits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "core/config.hpp"
#include "kernels/packed.hpp"
#include "stet/cache.hpp"

namespace stet::kernels {

/// Half-open range of rows, panels or heads.
struct Range {
  int begin = 0, end = 0;
};

/// Activations of int8 and int4 matmuls, quantised in the groups of the weights: x = scale x q, q in -127..127. A group
/// whose largest magnitude is below kSmallestGroup is all zeros with scale 0.
inline constexpr float kSmallestGroup = 0x1p-100F;
struct QuantizedRows {
  std::int8_t* q = nullptr;      // [rows][groups x group_size], zero beyond the inputs
  float* scales = nullptr;       // [rows][groups]
  std::int32_t* sums = nullptr;  // [rows][groups], of the group's q
  int groups = 0, group = 0;
};

struct Quantize {
  const float* x = nullptr;
  std::size_t x_stride = 0;
  int in = 0;
  QuantizedRows to;
};

/// y[r, n] = chain over k of fma(x[r, k], w[k, n], acc), then + bias[n]; rule 1. With int8 and int4 weights the chain
/// goes over groups, acc = fma(sum of q x q, scale of x times scale of w, acc), and `quantized` holds x; rule 6.
/// Strides in elements. f64 weights go with double, all others with float.
template <class T>
struct Matmul {
  const T* x = nullptr;
  std::size_t x_stride = 0;
  const Packed* w = nullptr;
  const T* bias = nullptr;  // null: none
  T* y = nullptr;
  std::size_t y_stride = 0;
  QuantizedRows quantized{};
  bool head = false;     // the output head, which a profile tells apart
  bool onwards = false;  // the caller's next call is likely to be for the panels after these: a hint to prefetch
};

/// y = (x - mean) / sqrt(variance + epsilon) x gain + bias over each row of `width`. Rule 2. x and y may be the same.
/// Without a bias it is RMSNorm (Zhang and Sennrich 2019): y = x / sqrt(mean of squares + epsilon) x gain.
template <class T>
struct LayerNorm {
  const T* x = nullptr;
  std::size_t x_stride = 0;
  const T* gain = nullptr;
  const T* bias = nullptr;  // null: RMSNorm
  T epsilon = 0;
  int width = 0;
  T* y = nullptr;
  std::size_t y_stride = 0;
};

/// Rotary positions in place: within each of the `heads` of a row, component i < head_dim / 2 and its partner i +
/// head_dim / 2 become fma(-partner, sin, component x cos) and fma(component, sin, partner x cos).
template <class T>
struct Rotate {
  T* x = nullptr;
  std::size_t x_stride = 0;
  int heads = 0, head_dim = 0;
  const T* cos = nullptr;  // [rows][head_dim / 2]
  const T* sin = nullptr;
};

/// Positions that rule 4 takes together.
inline constexpr Pos kSoftmaxBlock = 512;

/// Queries of one slice of a step: row r (0 <= r < tokens) is position first + r, its head h starts at
/// q + r * q_stride + h * k_dim; its result goes to out + r * out_stride + h * v_dim. Rules 4 and 5.
template <class T>
struct Attend {
  View view;
  Pos first = 0;
  int tokens = 0;
  int heads = 0;  // query heads; a multiple of the view's KV heads, which serve heads / kv_heads neighbours each
  T scale = 0;
  const T* q = nullptr;
  std::size_t q_stride = 0;
  T* out = nullptr;
  std::size_t out_stride = 0;

  /// Row r sees positions [0, sinks(r)) and [begin(r), end(r)), which the view has.
  Pos begin(int r) const noexcept {
    const Pos position = first + r;
    return view.span.window > 0 ? std::max(view.first, position + 1 - view.span.window) : view.first;
  }
  Pos end(int r) const noexcept { return std::min(first + r + 1, view.end()); }
  Pos sinks(int r) const noexcept { return view.span.window > 0 ? std::min(view.span.sinks, begin(r)) : 0; }

  /// Of the blocks of kSoftmaxBlock positions, those that hold any of them are of [first_block(r), end_block(r)).
  Pos first_block(int r) const noexcept { return sinks(r) > 0 ? 0 : begin(r) / kSoftmaxBlock; }
  Pos end_block(int r) const noexcept { return (end(r) - 1) / kSoftmaxBlock + 1; }
  bool sees_block(int r, Pos block) const noexcept {
    return block * kSoftmaxBlock < sinks(r) ||
           ((block + 1) * kSoftmaxBlock > begin(r) && block * kSoftmaxBlock < end(r));
  }
};

/// What a query makes of one block of kSoftmaxBlock positions by rule 4, before the blocks are merged: the largest
/// score, the sum of exp(score - maximum), and elsewhere the sum of exp(score - maximum) x V.
template <class T>
struct Partial {
  T maximum, sum;
};

/// Blocks [first, first + count) of the queries of some rows and one KV head: query i of block first + b is at
/// [b x queries + i], where i counts the heads of the KV head's group within a row, then the next row.
template <class T>
struct PartialBlocks {
  T* outs = nullptr;  // v_dim values each
  Partial<T>* partials = nullptr;
  std::size_t queries = 0;
  Pos first = 0, count = 0;
  T* scores = nullptr;  // kSoftmaxBlock each, aligned to 64 bytes: made by score_blocks; null: attend_blocks makes them
};

/// A codec as a constant, for code that is compiled for each.
template <Codec kCodec>
using CodecTag = std::integral_constant<Codec, kCodec>;

/// One target's kernels.
template <class T>
struct Table {
  void (*matmul)(const Matmul<T>& op, Range rows, Range panels);
  bool (*quantize)(const Quantize& op, Range rows);  // false: an activation was not finite
  void (*layer_norm)(const LayerNorm<T>& op, Range rows);
  void (*activate)(Activation activation, std::span<T> x);
  void (*add)(std::span<const T> x, std::span<T> y);       // y += x
  void (*multiply)(std::span<const T> x, std::span<T> y);  // y *= x
  void (*rotate)(const Rotate<T>& op, Range rows);
  void (*attend)(const Attend<T>& op, Range rows, Range kv_heads);
  // attend() in two steps, for a context that several threads share: blocks [begin, end) into `to`, as far as the rows
  // see them, and once all are there, the merge.
  void (*attend_blocks)(const Attend<T>& op, Range rows, int kv_head, Range blocks, const PartialBlocks<T>& to);
  void (*merge_blocks)(const Attend<T>& op, Range rows, int kv_head, const PartialBlocks<T>& from);
  // Only to.scores of blocks [begin, end), for an attention that holds all scores before it goes on with any: the next
  // attend_blocks takes them from there, and leaves something else in their place.
  void (*score_blocks)(const Attend<T>& op, Range rows, int kv_head, Range blocks, const PartialBlocks<T>& to);
};

/// The plain scalar kernels that the others are held to.
const Table<float>& ref_f32() noexcept;
const Table<double>& ref_f64() noexcept;

/// The kernels of one instruction set.
struct Target {
  const char* name;
  const char* plain_name;  // of those that run without int8 and int4 weights: a dot-product set differs only in these
  const Table<float>* f32;
  const Table<double>* f64;

  const char* name_with(DType weights) const noexcept { return group_size(weights) > 1 ? name : plain_name; }

  template <class T>
  const Table<T>& table() const noexcept {
    if constexpr (sizeof(T) == 8) {
      return *f64;
    } else {
      return *f32;
    }
  }
};

/// Those that this CPU runs, fastest first; the last is "ref". All give the same bits.
std::span<const Target> targets() noexcept;

/// Whether this CPU fuses multiply and add, without which no kernel here may run.
bool cpu_fuses() noexcept;

}  // namespace stet::kernels
