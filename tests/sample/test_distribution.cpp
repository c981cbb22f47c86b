// What is drawn, and how often, against a sampler written another way (support.cpp).
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "sample/sampler.hpp"
#include "sample/support.hpp"

namespace stet::sample_test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr int kDraws = 30'000;

const std::vector<double> kLogits{1.5, -0.25, 0.75, 2, -kInf, 0.75, -3, 1, 0, -1.5};
const std::vector<TokenId> kHistory{3, 1, 3, 8};

struct Case {
  const char* name;
  SamplingParams params;
};

std::vector<Case> cases() {
  return {
      {"temperature 1", {.temperature = 1}},
      {"temperature 0.7", {.temperature = 0.7}},
      {"temperature 2.5", {.temperature = 2.5}},
      {"top-k", {.temperature = 1, .top_k = 4}},
      {"top-k larger than the vocabulary", {.temperature = 1, .top_k = 1000}},
      {"top-p", {.temperature = 1, .top_p = 0.8}},
      {"min-p", {.temperature = 1, .min_p = 0.25}},
      {"repetition penalty", {.temperature = 1, .repetition_penalty = 1.7}},
      {"all", {.temperature = 1.3, .top_k = 7, .top_p = 0.9, .min_p = 0.15, .repetition_penalty = 0.8, .seed = 11}},
  };
}

enum class Along { seed, sequence, position };

std::vector<int> count_draws(SamplingParams params, Along along) {
  std::vector<int> counts(kLogits.size());
  const std::uint64_t seed = params.seed;
  for (int i = 0; i < kDraws; ++i) {
    const auto n = static_cast<std::uint64_t>(i);
    params.seed = along == Along::seed ? seed + n : seed;
    const auto id =
        sample::sample(kLogits, kHistory, params, along == Along::sequence ? n : 3, along == Along::position ? i : 9);
    if (!id) {
      ADD_FAILURE() << id.error().message;
      break;
    }
    ++counts[static_cast<std::size_t>(*id)];
  }
  return counts;
}

TEST(Distribution, IsRightAlongPositionsSequencesAndSeeds) {
  for (const Case& c : cases()) {
    const Choices expected = choices(kLogits, kHistory, c.params);
    for (const Along along : {Along::seed, Along::sequence, Along::position}) {
      const double statistic = chi_square(count_draws(c.params, along), expected.by_id(kLogits.size()));
      EXPECT_LT(statistic, chi_square_limit(expected.ids.size() - 1)) << c.name << " " << static_cast<int>(along);
    }
  }
}

// The test above can fail: it tells temperatures 8 % apart, a neighbouring top-p, and a penalty applied twice.
TEST(Distribution, OfOtherParametersIsToldApart) {
  const auto told_apart = [](const SamplingParams& drawn, const SamplingParams& claimed) {
    const Choices expected = choices(kLogits, kHistory, claimed);
    return chi_square(count_draws(drawn, Along::position), expected.by_id(kLogits.size())) >
           chi_square_limit(expected.ids.size() - 1);
  };
  EXPECT_TRUE(told_apart({.temperature = 1.08}, {.temperature = 1}));
  EXPECT_TRUE(told_apart({.temperature = 1, .top_p = 0.9}, {.temperature = 1, .top_p = 0.8}));
  EXPECT_TRUE(
      told_apart({.temperature = 1, .repetition_penalty = 1.7}, {.temperature = 1, .repetition_penalty = 1.7 * 1.7}));
}

struct Drawn {
  int compared = 0, left_out = 0;
};

// Draws from one row against the naive sampler with the same random number; leaves out what rounding decides.
void compare_row(const std::vector<double>& logits, const std::vector<TokenId>& history, const SamplingParams& params,
                 Drawn& drawn) {
  const Choices expected = choices(logits, history, params);
  for (Pos position = 0; position < 20; ++position) {
    const long double u = sample::uniform(params.seed, 1, position);
    std::size_t chosen = expected.ids.size() - 1;
    long double sum = 0, margin = expected.margin;
    for (std::size_t i = 0; i < expected.ids.size(); ++i) {
      sum += expected.probabilities[i];
      margin = std::min(margin, std::fabs(sum - u));
      if (sum > u) {
        chosen = i;
        break;
      }
    }
    if (margin < 1e-11L) {
      ++drawn.left_out;
      continue;
    }
    const auto id = sample::sample(logits, history, params, 1, position);
    ASSERT_TRUE(id) << id.error().message;
    ASSERT_EQ(*id, expected.ids[chosen]) << "position " << position << " vocabulary " << logits.size()
                                         << " temperature " << params.temperature << " top-k " << params.top_k
                                         << " top-p " << params.top_p << " min-p " << params.min_p << " penalty "
                                         << params.repetition_penalty;
    ++drawn.compared;
  }
}

SamplingParams random_params(std::mt19937_64& random, int vocab) {
  const auto u = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  SamplingParams params;
  params.temperature = std::exp(4 * u() - 2);
  if (random() % 2) params.top_k = static_cast<int>(random() % static_cast<unsigned>(vocab + 2));
  if (random() % 2) params.top_p = 1 - u();
  if (random() % 3 == 0) params.min_p = u() * u();
  if (random() % 2) params.repetition_penalty = 0.5 + 1.5 * u();
  params.seed = random();
  return params;
}

TEST(Distribution, EveryDrawIsTheNaiveSamplersForRandomRowsAndParameters) {
  std::mt19937_64 random(1);
  Drawn drawn;
  for (int trial = 0; trial < 2500; ++trial) {
    const int vocab = 1 + static_cast<int>(random() % 60);
    std::vector<double> logits(static_cast<std::size_t>(vocab));
    const bool ties = random() % 2;  // few distinct values: ranks are decided by ids
    for (double& x : logits) {
      x = static_cast<double>(random() % 2001) / 200 - 5;
      if (ties) x = std::floor(x / 2);
      if (random() % 8 == 0) x = -kInf;
    }
    logits[random() % logits.size()] = 1;
    std::vector<TokenId> history;
    for (auto n = random() % 10; n > 0; --n) history.push_back(static_cast<TokenId>(random() % logits.size()));
    compare_row(logits, history, random_params(random, vocab), drawn);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(drawn.compared, 40'000);
  EXPECT_LT(drawn.left_out, drawn.compared / 20);
}

TEST(Distribution, LargeVocabulariesAreDrawnRightToo) {
  constexpr int kVocab = 50'257;
  std::mt19937_64 random(2);
  std::vector<double> logits(kVocab);
  for (double& x : logits) x = static_cast<double>(random() % 20'001) / 1000 - 10;
  Drawn drawn;
  for (const Case& c : cases()) {
    compare_row(logits, kHistory, c.params, drawn);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(drawn.compared, 100);
}

}  // namespace
}  // namespace stet::sample_test
