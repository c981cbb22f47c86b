// Prefix hits held to what they stand for: some are computed anew and their stored rows compared, bit by bit.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/scheduler.hpp"

namespace stet::engine {

class Auditor {
 public:
  /// Of every hit a share of `fraction`, evenly: with 0.25 each fourth.
  explicit Auditor(double fraction) : fraction_(fraction) {}

  /// `hit` holds the rows of `tokens`. Recomputes them in a sequence of its own, if it is this hit's turn and the cache
  /// has room, and counts what differs. Errors are those of the model's forward.
  Result<void> check(const Bench& bench, int chunk, Seq hit, std::span<const TokenId> tokens);

  std::uint64_t audited = 0, skipped = 0, different = 0;
  std::string first_difference;

 private:
  Result<bool> recompute(const Bench& bench, int chunk, Seq seq, std::span<const TokenId> tokens);
  void compare(const Cache& cache, Seq hit, Seq anew, Pos length);

  double fraction_, due_ = 0;
};

}  // namespace stet::engine
