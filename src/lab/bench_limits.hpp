// The machine's own limits, measured in the process and by the threads that the work itself runs on.
#pragma once

#include "base/buffer.hpp"
#include "kernels/run.hpp"
#include "lab/bench_work.hpp"

namespace stet::lab {

class LimitsMeter {
 public:
  explicit LimitsMeter(const kernels::Compute& on) : on_(on) {}

  /// The best of what a few tenths of a second show. Code::capacity when there is no memory for a buffer of `bytes`.
  Result<Limits> measure(std::size_t bytes, DType weights);

  double read_gb_s(std::size_t bytes);  // the buffer is there
  double peak_gflop_s(DType weights);
  /// Of a whole matmul of 512 rows with GPT-2's MLP, weights in the cache: the kernel that comes closest to its peak.
  Result<double> matmul_gflop_s(DType weights);

 private:
  Result<void> reserve(std::size_t bytes);

  kernels::Compute on_;
  base::Buffer buffer_;
};

/// The better of each.
Limits better(const Limits& a, const Limits& b);

}  // namespace stet::lab
