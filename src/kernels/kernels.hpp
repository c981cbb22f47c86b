// The arithmetic of Stet, one struct a call and one table a target. Every function computes part of a result (some
// panels, some rows, some heads), single-threaded; run.hpp spreads the parts over threads. How the work is cut is free;
// the order within each output is fixed by docs/numerics.md, so every table gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/buffer.hpp"
#include "core/config.hpp"
#include "stet/cache.hpp"

namespace stet::kernels {

/// Outputs in a panel of packed weights: 256 bytes of them, four vectors of AVX-512.
template <class T>
inline constexpr int kPanel = 256 / static_cast<int>(sizeof(T));

/// A weight matrix [in, out] as panels [out / kPanel][in][kPanel], outputs side by side; the last panel is padded with
/// 0.
template <class T>
class Packed {
 public:
  Packed() = default;
  /// All zero. Code::capacity when the system refuses the memory.
  static Result<Packed> allocate(int in, int out);
  static std::size_t bytes(std::int64_t in, std::int64_t out) noexcept;

  int in() const noexcept { return in_; }
  int out() const noexcept { return out_; }
  int panels() const noexcept { return (out_ + kPanel<T> - 1) / kPanel<T>; }
  const T* panel(int p) const noexcept { return data_.as<T>() + static_cast<std::size_t>(p) * in_ * kPanel<T>; }

  /// Row k of [in, out]: the weights of input k for all outputs.
  void set_input(int k, std::span<const T> row) noexcept;
  /// Column n of [in, out], that is row n of [out, in]: all weights of output n.
  void set_output(int n, std::span<const T> column) noexcept;
  void get_output(int n, std::span<T> column) const noexcept;

 private:
  int in_ = 0, out_ = 0;
  base::Buffer data_;
};

/// y[r, n] = chain over k of fma(x[r, k], w[k, n], acc), then + bias[n]. Rule 1. Strides in elements.
template <class T>
struct Matmul {
  const T* x = nullptr;
  std::size_t x_stride = 0;
  const Packed<T>* w = nullptr;
  const T* bias = nullptr;  // null: none
  T* y = nullptr;
  std::size_t y_stride = 0;
};

/// Half-open range of rows, panels or heads.
struct Range {
  int begin = 0, end = 0;
};

/// y = (x - mean) / sqrt(variance + epsilon) x gain + bias over each row of `width`. Rule 2. x and y may be the same.
template <class T>
struct LayerNorm {
  const T* x = nullptr;
  std::size_t x_stride = 0;
  const T* gain = nullptr;
  const T* bias = nullptr;
  T epsilon = 0;
  int width = 0;
  T* y = nullptr;
  std::size_t y_stride = 0;
};

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
};

/// One target's kernels.
template <class T>
struct Table {
  void (*matmul)(const Matmul<T>& op, Range rows, Range panels);
  void (*layer_norm)(const LayerNorm<T>& op, Range rows);
  void (*activate)(Activation activation, std::span<T> x);
  void (*add)(std::span<const T> x, std::span<T> y);  // y += x
  void (*attend)(const Attend<T>& op, Range rows, Range kv_heads);
};

/// The plain scalar kernels that the others are held to.
const Table<float>& ref_f32() noexcept;
const Table<double>& ref_f64() noexcept;

/// The kernels of one instruction set.
struct Target {
  const char* name;
  const Table<float>* f32;
  const Table<double>* f64;

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
