#include "lab/bench_work.hpp"

#include <algorithm>

#include "kernels/packed.hpp"
#include "model/model.hpp"

namespace stet::lab {

namespace {

// Stored bytes of one token in one layer.
double row_bytes(const LayerSpec& layer) {
  CacheOptions one;
  one.max_len = 1;
  const auto plan = plan_cache({{layer}}, one);
  return plan ? static_cast<double>(plan->bytes_per_token) : 0;
}

// Positions that the rows of a step read between them: those of a window, and of the others the sinks.
Pos read_rows(const Span& span, Pos depth, Pos tokens) {
  const Pos all = depth + tokens;
  return span.window > 0 ? std::min(all, span.window + tokens - 1 + span.sinks) : all;
}

Pos seen_by(const Span& span, Pos position) {
  return span.window > 0 ? std::min(position + 1, span.window + span.sinks) : position + 1;
}

}  // namespace

Work work_of(const WorkOf& of, const StepShape& shape) {
  const ModelConfig& c = of.config;
  const double width = c.width, vocab = c.vocab;
  const double rows = static_cast<double>(shape.tokens) * shape.batch;
  const auto packed = [&of](int in, int out) {
    return static_cast<double>(kernels::Packed::bytes(of.weights, in, out));
  };
  double layer_bytes = 0, layer_weights = 0;
  for (const auto& matrix : model::layer_matrices(c)) {
    layer_bytes += packed(matrix.in, matrix.out);
    layer_weights += static_cast<double>(matrix.in) * matrix.out;
  }
  Work work;
  work.weight_bytes = c.layers * layer_bytes + packed(c.width, c.vocab);
  if (!c.tied_head) work.weight_bytes += rows * width * bits_of(of.weights) / 8;
  work.linear_operations = 2 * c.layers * rows * layer_weights + 2 * shape.batch * width * vocab;

  for (const LayerSpec& layer : of.cache.layers) {
    const auto read = static_cast<double>(read_rows(layer.span, shape.depth, shape.tokens));
    work.cache_bytes += shape.batch * read * row_bytes(layer);
    double visible = 0;
    for (Pos t = 0; t < shape.tokens; ++t) visible += static_cast<double>(seen_by(layer.span, shape.depth + t));
    work.attention_operations += shape.batch * visible * 2 * (2.0 * c.heads * c.head_dim);
  }
  return work;
}

Work mean_work(const WorkOf& of, const StepShape& shape, int steps) {
  Work mean;
  for (int i = 0; i < steps; ++i) {
    const Work work = work_of(of, {shape.depth + i, 1, shape.batch});
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
