// What a step has to do at least: the bytes it cannot avoid to read and the operations it cannot avoid to compute.
#pragma once

#include "core/config.hpp"
#include "stet/cache.hpp"
#include "stet/types.hpp"

namespace stet::lab {

/// A step that appends `tokens` to each of `batch` sequences of `depth` tokens, logits wanted of each one's last row.
struct StepShape {
  Pos depth = 0;
  int tokens = 1, batch = 1;
};

/// The bytes of a model's weights by their type, and of its cache by its spec.
struct WorkOf {
  const ModelConfig& config;
  DType weights = DType::f32;
  const CacheSpec& cache;
};

/// Of one step. Vectors (norms, biases, position rows) and activations are left out: they are small, and leaving them
/// out only makes the bound harder.
struct Work {
  double weight_bytes = 0;          // every matrix once as it is packed, scales and padding included; the head once; of
                                    // an untied token embedding only the rows used
  double cache_bytes = 0;           // every visible stored row once a layer and sequence, scales included
  double linear_operations = 0;     // 2 a multiply-add; layers for all rows, the head for one row a sequence
  double attention_operations = 0;  // q.k and p.v of the visible rows

  double bytes() const { return weight_bytes + cache_bytes; }
  double operations() const { return linear_operations + attention_operations; }
};

Work work_of(const WorkOf& of, const StepShape& shape);

/// The mean of `steps` steps of one token each, the first at `shape`'s depth.
Work mean_work(const WorkOf& of, const StepShape& shape, int steps);

/// What the machine does at most, measured.
struct Limits {
  double read_gb_s = 0;            // over a buffer as large as the work
  double peak_gflop_s = 0;         // of the arithmetic of the matmuls
  double vector_peak_gflop_s = 0;  // of the attention, which is in f32 also where the matmuls are of integers
};

/// Milliseconds that the work takes at least: reading it, or computing it, each operation at its own peak.
double bound_ms(const Work& work, const Limits& limits);

}  // namespace stet::lab
