// Weight matrices in the layout that the matmul kernels stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/buffer.hpp"
#include "stet/result.hpp"
#include "stet/types.hpp"

namespace stet::kernels {

/// Outputs in a panel: 256 bytes of them in the type of the arithmetic, four vectors of AVX-512.
constexpr int panel_width(DType weights) noexcept {
  return weights == DType::f64 ? 32 : 64;
}

/// Inputs that share one scale; 1 for types without scales. int8 in groups of 64, int4 of 32: the sizes at which a
/// scale of 16 bits costs 3 and 12.5 %.
constexpr int group_size(DType weights) noexcept {
  return weights == DType::int8 ? 64 : weights == DType::int4 ? 32 : 1;
}

/// Bytes of a group of one panel: of types without scales a row of the panel; of int8 and int4 the 64 scales as bf16,
/// then the quants (see Packed).
constexpr std::size_t group_bytes(DType weights) noexcept {
  const int inputs = group_size(weights);
  const std::size_t quants = static_cast<std::size_t>(panel_width(weights)) * inputs * bits_of(weights) / 8;
  return inputs == 1 ? quants : static_cast<std::size_t>(panel_width(weights)) * 2 + quants;
}

/// A weight matrix [in, out] in panels of panel_width outputs, side by side: panel [in / group][group_bytes]. The last
/// panel is padded with zero weights, and so is the last group.
///   f64, f32, f16, bf16: the bits of w[k][n], n fastest.
///   int8: w = scale x (q - 128), q in 1..255: [16][64][4] bytes, four inputs of one output side by side, what a
///   dot-product instruction takes. int4: w = scale x (q - 8), q in 0..15: [4][64][4] bytes, of eight inputs of one
///   output the first four in the low halves and the next four in the high halves.
/// Scales are bf16, quants rounded to nearest even (docs/numerics.md, rule 6). A group of zeros has scale 0. Values
/// must be finite for int8 and int4.
class Packed {
 public:
  Packed() = default;
  /// Code::capacity when the system refuses the memory. Contents are unspecified but for the padding.
  static Result<Packed> allocate(DType type, int in, int out);
  static std::size_t bytes(DType type, std::int64_t in, std::int64_t out) noexcept;

  DType type() const noexcept { return type_; }
  int in() const noexcept { return in_; }
  int out() const noexcept { return out_; }
  int groups() const noexcept { return blocks(in_, group_size(type_)); }
  int panels() const noexcept { return blocks(out_, panel_width(type_)); }
  std::size_t panel_bytes() const noexcept { return static_cast<std::size_t>(groups()) * group_bytes(type_); }
  /// All panels, padding included: the same bytes for the same weights on every CPU.
  std::span<const std::byte> stored() const noexcept { return {data_.data(), data_.size()}; }
  const std::byte* panel(int p) const noexcept { return data_.data() + static_cast<std::size_t>(p) * panel_bytes(); }

  /// Rows [k, k + count) of [in, out]: the weights of some inputs for all outputs, values[i * out + n]. k is a multiple
  /// of the group size, and so is count unless the rows end the matrix.
  template <class T>
  void set_inputs(int k, int count, std::span<const T> values) noexcept;

  /// Columns [n, n + count) of [in, out], that is rows of [out, in]: all weights of some outputs, values[i * in + k].
  template <class T>
  void set_outputs(int n, int count, std::span<const T> values) noexcept;

  /// What is stored of column n, as numbers again.
  template <class T>
  void get_output(int n, std::span<T> column) const noexcept;

 private:
  static constexpr int blocks(int n, int size) noexcept { return n / size + (n % size != 0 ? 1 : 0); }
  std::byte* group(int p, int g) noexcept {
    return data_.data() + static_cast<std::size_t>(p) * panel_bytes() +
           static_cast<std::size_t>(g) * group_bytes(type_);
  }
  template <class T, class Value>
  void set_group(int p, int g, int column, int count, const Value& value) noexcept;

  DType type_ = DType::f32;
  int in_ = 0, out_ = 0;
  base::Buffer data_;
};

}  // namespace stet::kernels
