// Matmuls that do not keep the numerics contract: what the same work takes when any order of summation will do. For one
// row the lanes lie along the inputs; for many rows the inputs are cut into blocks that are summed apart.
#pragma once

#include <cstddef>
#include <vector>

#include "base/buffer.hpp"
#include "base/thread_pool.hpp"
#include "kernels/kernels.hpp"

namespace stet::bench {

/// Whether this CPU and this build have them (AVX-512 with VNNI and BF16).
bool can_break() noexcept;

/// A weight matrix of `keep` again, laid out for one row: row-major, the inputs of an output side by side. int8 and
/// int4 have their scales (bf16) apart.
struct RowMajor {
  DType type = DType::f32;
  int in = 0, out = 0;
  base::Buffer weights, scales;
};
Result<RowMajor> row_major(const kernels::Packed& keep, const std::vector<float>& values);

/// y[0, n) for one row: outputs `part` of the matrix. `x`: of int8 and int4 also as `quantized`, `corrections` from
/// correct().
struct OneRow {
  const RowMajor* w = nullptr;
  const float* x = nullptr;
  kernels::QuantizedRows quantized{};
  const std::int32_t* corrections = nullptr;  // [in / 4]
  float* y = nullptr;
};
void multiply_row(const OneRow& op, kernels::Range part);

/// For each four inputs what the unsigned weights' zero point adds to their sum, negated.
void correct(const OneRow& op, std::int32_t* corrections);

/// Many rows by panels of `keep`. f32 and f16 take x; int8 and int4 `quantized`, of at most 3,072 inputs; bf16 takes
/// pairs of bf16 on both sides (pair_up, round_rows), for vdpbf16ps.
struct ManyRows {
  const kernels::Packed* w = nullptr;
  const std::byte* pairs = nullptr;  // instead of w's panels, of bf16
  const float* x = nullptr;
  std::size_t x_stride = 0;
  kernels::QuantizedRows quantized{};
  int rows = 0;        // a multiple of kTileRows
  float* y = nullptr;  // [rows][out], out a multiple of 64
  std::size_t y_stride = 0;
};
inline constexpr int kTileRows = 6;
void round_rows(const float* x, int in, kernels::Range rows, float* pairs);  // [rows][in / 2] pairs of bf16
Result<base::Buffer> pair_up(const kernels::Packed& bf16);                   // [panel][in / 2][64][2]
void multiply_rows(const ManyRows& op, int panel);

}  // namespace stet::bench
