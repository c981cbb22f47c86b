// The machine's own limits, measured where and when the work is: what a comparison is held against.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/thread_pool.hpp"

namespace stet::bench {

/// Seconds of a monotonic clock; after count_cpu_time() those that the calling thread ran. With one thread that leaves
/// out what the system gives to others, so it is the clock for a machine that is not idle.
double now() noexcept;
void count_cpu_time() noexcept;

/// The middle value, or the mean of the two middle ones; 0 of nothing.
double median(std::vector<double> values);

/// Reads `bytes` once with all threads, one contiguous share each. GB/s (10^9).
double read_gb_s(base::ThreadPool& pool, std::span<const std::byte> bytes);

/// 10^9 operations a second of all threads, from registers alone for some milliseconds. A multiply-add is two.
struct Peaks {
  double f32 = 0, f64 = 0;
  double int8 = 0;        // u8 x s8 dot products into i32 (vpdpbusd); 0: this build has none
  double int8_by_64 = 0;  // the same with what groups of 64 cost beside them: one conversion, two products, one sum
  double int8_by_32 = 0;  // of 32
  double bf16 = 0;        // bf16 pairs into f32 (vdpbf16ps); 0: this build has none
};
Peaks peaks(base::ThreadPool& pool);

}  // namespace stet::bench
