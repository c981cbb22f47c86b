#include "lab/bench_work.hpp"

#include <algorithm>

#include "kernels/packed.hpp"
#include "model/model.hpp"

namespace stet::lab {

Work work_of(const ModelConfig& c, DType weights, const StepShape& shape) {
  const double width = c.width, vocab = c.vocab;
  const double rows = static_cast<double>(shape.tokens) * shape.batch;
  const auto packed = [weights](int in, int out) {
    return static_cast<double>(kernels::Packed::bytes(weights, in, out));
  };
  double layer_bytes = 0, layer_weights = 0;
  for (const auto& matrix : model::layer_matrices(c)) {
    layer_bytes += packed(matrix.in, matrix.out);
    layer_weights += static_cast<double>(matrix.in) * matrix.out;
  }
  Work work;
  work.weight_bytes = c.layers * layer_bytes + packed(c.width, c.vocab);
  if (!c.tied_head) work.weight_bytes += rows * width * bits_of(weights) / 8;
  work.linear_operations = 2 * c.layers * rows * layer_weights + 2 * shape.batch * width * vocab;

  const double element = static_cast<double>(size_of(arithmetic_of(weights)));
  const double stored = 2.0 * c.kv_heads * c.head_dim;  // numbers of a token and layer, keys and values
  for (int layer = 0; layer < c.layers; ++layer) {
    const Pos all = shape.depth + shape.tokens;
    const Pos window = c.windows.empty() ? 0 : c.windows[static_cast<std::size_t>(layer)];
    const Pos read = window > 0 ? std::min(all, window + shape.tokens - 1) : all;
    work.cache_bytes += shape.batch * static_cast<double>(read) * stored * element;
    double visible = 0;  // row t sees itself and the depth + t positions before it, or the last of a window
    for (Pos t = 1; t <= shape.tokens; ++t) {
      visible += static_cast<double>(window > 0 ? std::min(shape.depth + t, window) : shape.depth + t);
    }
    work.attention_operations += shape.batch * visible * 2 * (2.0 * c.heads * c.head_dim);
  }
  return work;
}

Work mean_work(const ModelConfig& config, DType weights, const StepShape& shape, int steps) {
  Work mean;
  for (int i = 0; i < steps; ++i) {
    const Work work = work_of(config, weights, {shape.depth + i, 1, shape.batch});
    mean.weight_bytes += work.weight_bytes / steps;
    mean.cache_bytes += work.cache_bytes / steps;
    mean.linear_operations += work.linear_operations / steps;
    mean.attention_operations += work.attention_operations / steps;
  }
  return mean;
}

double bound_ms(const Work& work, const Limits& limits) {
  const double reading = work.bytes() / limits.read_gb_s;
  const double computing =
      work.linear_operations / limits.peak_gflop_s + work.attention_operations / limits.vector_peak_gflop_s;
  return std::max(reading, computing) / 1e6;
}

}  // namespace stet::lab
