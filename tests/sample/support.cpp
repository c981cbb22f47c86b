#include "sample/support.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

namespace stet::sample_test {
namespace {

// Keeps the elements of `keep` in both lists, and makes the probabilities sum to 1 again.
void restrict_to(Choices& c, const std::vector<bool>& keep) {
  Choices next;
  next.margin = c.margin;
  for (std::size_t i = 0; i < keep.size(); ++i) {
    if (!keep[i]) continue;
    next.ids.push_back(c.ids[i]);
    next.probabilities.push_back(c.probabilities[i]);
  }
  const auto sum = std::accumulate(next.probabilities.begin(), next.probabilities.end(), 0.0L);
  for (auto& p : next.probabilities) p /= sum;
  c = next;
}

void narrow(Choices& c, long double distance) {
  c.margin = std::min(c.margin, std::fabs(distance));
}

}  // namespace

std::vector<double> Choices::by_id(std::size_t vocab) const {
  std::vector<double> out(vocab);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    out[static_cast<std::size_t>(ids[i])] = static_cast<double>(probabilities[i]);
  }
  return out;
}

Choices choices(std::span<const double> row, std::span<const TokenId> history, const SamplingParams& params) {
  std::vector<long double> logits(row.begin(), row.end());
  for (const TokenId id : std::set<TokenId>(history.begin(), history.end())) {
    auto& logit = logits[static_cast<std::size_t>(id)];
    logit = static_cast<double>(logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty);
  }

  Choices c;
  c.ids.resize(logits.size());
  std::iota(c.ids.begin(), c.ids.end(), 0);
  const auto logit = [&](TokenId id) { return logits[static_cast<std::size_t>(id)]; };
  const bool cut_k = params.top_k > 0 && static_cast<std::size_t>(params.top_k) < logits.size();
  if (cut_k || params.top_p < 1) {
    std::stable_sort(c.ids.begin(), c.ids.end(), [&](TokenId a, TokenId b) { return logit(a) > logit(b); });
  }
  const long double largest = *std::max_element(logits.begin(), logits.end());
  for (const TokenId id : c.ids) c.probabilities.push_back(std::exp((logit(id) - largest) / params.temperature));

  std::vector<bool> keep(c.ids.size(), true);
  if (cut_k) std::fill(keep.begin() + params.top_k, keep.end(), false);
  restrict_to(c, keep);

  if (params.top_p < 1) {
    keep.assign(c.ids.size(), true);
    long double sum = 0;
    for (std::size_t i = 0; i < keep.size(); ++i) {
      narrow(c, sum - params.top_p);
      keep[i] = sum < params.top_p;
      sum += c.probabilities[i];
    }
    restrict_to(c, keep);
  }

  keep.assign(c.ids.size(), true);
  const long double best = *std::max_element(c.probabilities.begin(), c.probabilities.end());
  for (std::size_t i = 0; i < keep.size(); ++i) {
    const long double ratio = c.probabilities[i] / best;
    if (params.min_p > 0 && params.min_p < 1) narrow(c, ratio - params.min_p);
    keep[i] = ratio >= params.min_p;
  }
  restrict_to(c, keep);
  return c;
}

double chi_square(std::span<const int> counts, std::span<const double> probabilities) {
  const double draws = std::accumulate(counts.begin(), counts.end(), 0.0);
  double statistic = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = draws * probabilities[i];
    if (expected > 0) {
      statistic += (counts[i] - expected) * (counts[i] - expected) / expected;
    } else if (counts[i] > 0) {
      return std::numeric_limits<double>::infinity();
    }
  }
  return statistic;
}

double chi_square_limit(std::size_t degrees) {
  const double df = static_cast<double>(degrees), z = 5;
  const double root = 1 - 2 / (9 * df) + z * std::sqrt(2 / (9 * df));
  return df * root * root * root;
}

}  // namespace stet::sample_test
