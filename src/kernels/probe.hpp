// Loops that only read or only multiply and add: how fast a target can go at most, for a benchmark to hold kernels to.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.hpp"

namespace stet::kernels {

/// Reads take multiples of this.
inline constexpr std::size_t kProbeBlock = 1024, kReadAhead = 8192;

/// What a burst of arithmetic did, 2 operations a multiply-add, and a value that depends on all of it, so that no
/// compiler leaves a part out.
struct Burst {
  double operations = 0, value = 0;
};

/// One target's loops, single-threaded.
struct Probe {
  /// Plain loads of `bytes` in ascending order, or as four such streams side by side, or of lines that were asked for
  /// 8 KB before. The value depends on every byte.
  std::uint64_t (*read)(const std::byte* data, std::size_t bytes);
  std::uint64_t (*read_four_streams)(const std::byte* data, std::size_t bytes);
  std::uint64_t (*read_asked)(const std::byte* data, std::size_t bytes);
  /// `rounds` times one multiply-add for each of so many chains as keep the units busy, all in registers. Of integers
  /// the target's own dot-product instruction, or else 16-bit multiply-adds, which is what exact 8-bit products take.
  Burst (*f32)(std::size_t rounds);
  Burst (*f64)(std::size_t rounds);
  Burst (*integer)(std::size_t rounds);

  /// The arithmetic that matmuls with such weights do.
  Burst burst(DType weights, std::size_t rounds) const {
    return (weights == DType::f64 ? f64 : group_size(weights) > 1 ? integer : f32)(rounds);
  }
};

/// The loops of one of targets().
Probe probe_of(const Target& target) noexcept;

}  // namespace stet::kernels
