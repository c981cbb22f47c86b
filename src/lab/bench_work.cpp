#include "lab/bench_work.hpp"

#include <algorithm>

#include "kernels/packed.hpp"

namespace stet::lab {

Work work_of(const ModelConfig& c, DType weights, const StepShape& shape) {
  const double width = c.width, inner = c.inner, vocab = c.vocab, layers = c.layers;
  const double rows = static_cast<double>(shape.tokens) * shape.batch;
  const auto packed = [weights](int in, int out) {
    return static_cast<double>(kernels::Packed::bytes(weights, in, out));
  };
  Work work;
  work.weight_bytes = layers * (packed(c.width, 3 * c.width) + packed(c.width, c.width) + packed(c.width, c.inner) +
                                packed(c.inner, c.width)) +
                      packed(c.width, c.vocab);
  if (!c.tied_head) work.weight_bytes += rows * width * bits_of(weights) / 8;
  work.linear_operations =
      2 * layers * rows * (4 * width * width + 2 * width * inner) + 2 * shape.batch * width * vocab;

  const double element = static_cast<double>(size_of(arithmetic_of(weights)));
  const double stored = 2.0 * c.kv_heads * c.head_dim;  // numbers of a token and layer, keys and values
  work.cache_bytes = layers * shape.batch * static_cast<double>(shape.depth + shape.tokens) * stored * element;
  // Row t sees depth + t + 1 positions.
  const double n = shape.tokens, visible = n * static_cast<double>(shape.depth) + n * (n + 1) / 2;
  work.attention_operations = layers * shape.batch * visible * 2 * (2.0 * c.heads * c.head_dim);
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
