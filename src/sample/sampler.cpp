#include "sample/sampler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "sample/weights.hpp"

namespace stet::sample {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Candidate {
  double logit = 0;
  TokenId id = 0;
  double weight = 0;
};

bool keeps_all(int top_k, std::size_t vocab) {
  return top_k == 0 || static_cast<std::size_t>(top_k) >= vocab;
}

// An id that occurs several times is penalised once.
Result<void> penalise(std::vector<double>& logits, std::span<const TokenId> history, double penalty) {
  std::vector<bool> seen(logits.size());
  for (const TokenId id : history) {
    const auto i = static_cast<std::size_t>(id);
    if (id < 0 || i >= logits.size()) {
      return fail(Code::invalid_argument,
                  fmt::format("history has token {}, the logits are of {} ids", id, logits.size()));
    }
    if (seen[i]) continue;
    seen[i] = true;
    logits[i] = logits[i] > 0 ? logits[i] / penalty : logits[i] * penalty;
  }
  return {};
}

// The lowest id of the largest logit.
Result<std::size_t> largest_of(std::span<const double> logits, bool penalised) {
  std::size_t best = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] < kInfinity)) {
      return fail(Code::invalid_argument, fmt::format("the logit of token {} is {}{}", i, logits[i],
                                                      penalised ? " (after the repetition penalty)" : ""));
    }
    if (logits[i] > logits[best]) best = i;
  }
  if (logits.empty() || logits[best] == -kInfinity) {
    return fail(Code::invalid_argument,
                fmt::format("no token can be drawn: none of {} logits is finite", logits.size()));
  }
  return best;
}

// The item at which the running sum of weights, from the first on, passes the fraction u of their total. As u < 1, the
// product is less than the total, so the sum does pass it; and it cannot pass at a weight of 0.
template <class Items, class Weight>
std::size_t draw(const Items& items, double u, Weight weight) {
  double total = 0;
  for (const auto& item : items) total += weight(item);
  const double target = u * total;
  double sum = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    sum += weight(items[i]);
    if (sum > target) return i;
  }
  return 0;
}

// Candidates by rank, found on demand: a heap gives as many as are asked for without sorting the rest.
class Ranking {
 public:
  Ranking(std::span<const double> logits, std::span<const double> weights) : heap_(logits.size()) {
    for (std::size_t i = 0; i < logits.size(); ++i) heap_[i] = {logits[i], static_cast<TokenId>(i), weights[i]};
    std::make_heap(heap_.begin(), heap_.end(), after);
  }

  const Candidate& at(std::size_t rank) {
    while (ranked_.size() <= rank) {
      std::pop_heap(heap_.begin(), heap_.end(), after);
      ranked_.push_back(heap_.back());
      heap_.pop_back();
    }
    return ranked_[rank];
  }

  std::span<const Candidate> first(std::size_t count) const { return std::span(ranked_).first(count); }

 private:
  // Descending logit, ties by ascending id: a total order, so every way of sorting gives the same ranks.
  static bool after(const Candidate& a, const Candidate& b) noexcept {
    return a.logit != b.logit ? a.logit < b.logit : a.id > b.id;
  }

  std::vector<Candidate> heap_, ranked_;
};

// How many of the first ranks top-k, then top-p, then min-p leave; at least 1. The largest weight is 1.
std::size_t nucleus(Ranking& ranking, std::span<const double> weights, const SamplingParams& params) {
  std::size_t count = weights.size();
  double total = 0;
  if (keeps_all(params.top_k, count)) {
    for (const double weight : weights) total += weight;
  } else {
    count = static_cast<std::size_t>(params.top_k);
    for (std::size_t rank = 0; rank < count; ++rank) total += ranking.at(rank).weight;
  }
  const double enough = params.top_p < 1 ? params.top_p * total : kInfinity;
  double sum = 0;
  std::size_t kept = 0;
  while (kept < count && sum < enough && ranking.at(kept).weight >= params.min_p) {
    sum += ranking.at(kept).weight;
    ++kept;
  }
  return kept;
}

template <class T>
Result<TokenId> sample_row(std::span<const T> row, std::span<const TokenId> history, const SamplingParams& params,
                           std::uint64_t sequence, Pos position) {
  if (auto ok = check(params); !ok) return pass(ok);
  std::vector<double> logits(row.begin(), row.end());
  const bool penalised = params.repetition_penalty != 1;
  if (penalised) {
    if (auto ok = penalise(logits, history, params.repetition_penalty); !ok) return pass(ok);
  }
  const auto largest = largest_of(logits, penalised);
  if (!largest) return pass(largest);
  if (params.temperature == 0) return static_cast<TokenId>(*largest);

  std::vector<double> weight(logits.size());
  weights(logits.data(), logits.size(), logits[*largest], params.temperature, weight.data());
  const double u = uniform(params.seed, sequence, position);
  if (keeps_all(params.top_k, logits.size()) && params.top_p == 1) {
    const double least = params.min_p;
    return static_cast<TokenId>(draw(weight, u, [least](double w) { return w < least ? 0 : w; }));
  }
  Ranking ranking(logits, weight);
  const auto kept = ranking.first(nucleus(ranking, weight, params));
  return kept[draw(kept, u, [](const Candidate& c) { return c.weight; })].id;
}

Result<void> within(bool allowed, const char* field, double value, const char* range) {
  if (allowed) return {};
  return fail(Code::invalid_argument, fmt::format("{} is {}, allowed: {}", field, value, range));
}

}  // namespace

Result<void> check(const SamplingParams& params) {
  const auto finite = [](double x) { return std::isfinite(x); };
  const double t = params.temperature, p = params.top_p, m = params.min_p, r = params.repetition_penalty;
  if (auto ok = within(finite(t) && t >= 0, "temperature", t, "finite and at least 0"); !ok) return ok;
  if (auto ok = within(params.top_k >= 0, "top_k", params.top_k, "at least 0"); !ok) return ok;
  if (auto ok = within(p > 0 && p <= 1, "top_p", p, "above 0, at most 1"); !ok) return ok;
  if (auto ok = within(m >= 0 && m <= 1, "min_p", m, "0 to 1"); !ok) return ok;
  return within(finite(r) && r > 0, "repetition_penalty", r, "finite and above 0");
}

Result<TokenId> sample(std::span<const float> logits, std::span<const TokenId> history, const SamplingParams& params,
                       std::uint64_t sequence, Pos position) {
  return sample_row(logits, history, params, sequence, position);
}

Result<TokenId> sample(std::span<const double> logits, std::span<const TokenId> history, const SamplingParams& params,
                       std::uint64_t sequence, Pos position) {
  return sample_row(logits, history, params, sequence, position);
}

}  // namespace stet::sample
