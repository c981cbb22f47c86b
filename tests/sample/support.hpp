// A sampler written another way: long double, libm, full sorts. And the chi-square test.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stet/sampling.hpp"
#include "stet/types.hpp"

namespace stet::sample_test {

/// What may be drawn, in the order of drawing, and with what probability.
struct Choices {
  std::vector<TokenId> ids;
  std::vector<long double> probabilities;
  /// The least distance of a decision (does the sum reach top-p, does a probability reach min-p) from its bound: a test
  /// that chose its numbers at random leaves out cases where rounding decides.
  long double margin = 1;

  std::vector<double> by_id(std::size_t vocab) const;
};

/// Follows the comments of stet/sampling.hpp and sample/sampler.hpp word by word. Temperature above 0.
Choices choices(std::span<const double> logits, std::span<const TokenId> history, const SamplingParams& params);

/// Pearson's statistic. Ids of probability 0 must have no counts (else it is infinite).
double chi_square(std::span<const int> counts, std::span<const double> probabilities);

/// What the statistic passes once in 3 million right samples (Wilson and Hilferty 1931).
double chi_square_limit(std::size_t degrees);

}  // namespace stet::sample_test
