// The sampler's edge cases and errors, one by one.
#include "sample/sampler.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

namespace stet::sample_test {
namespace {

using testing::HasSubstr;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TokenId one(const std::vector<double>& logits, const SamplingParams& params, std::vector<TokenId> history = {},
            std::uint64_t sequence = 0, Pos position = 0) {
  const auto id = sample::sample(logits, history, params, sequence, position);
  EXPECT_TRUE(id) << id.error().message;
  return id.value_or(-1);
}

/// Every id that 2000 positions draw.
std::set<TokenId> drawn(const std::vector<double>& logits, const SamplingParams& params,
                        std::vector<TokenId> history = {}) {
  std::set<TokenId> ids;
  for (Pos position = 0; position < 2000; ++position) ids.insert(one(logits, params, history, 0, position));
  return ids;
}

std::string error_of(const std::vector<double>& logits, const SamplingParams& params,
                     std::vector<TokenId> history = {}) {
  const auto id = sample::sample(logits, history, params, 0, 0);
  if (id) return "drew " + std::to_string(*id);
  EXPECT_EQ(id.error().code, Code::invalid_argument);
  return id.error().message;
}

std::vector<double> logs(std::vector<double> probabilities) {
  for (double& p : probabilities) p = std::log(p);
  return probabilities;
}

using Ids = std::set<TokenId>;

TEST(Sampler, GreedyTakesTheLargestAndTheLowestIdOfEquals) {
  EXPECT_EQ(one({1, 3, 2}, {}), 1);
  EXPECT_EQ(one({1, 3, 2, 3}, {}), 1);
  EXPECT_EQ(one({-0.0, 0.0, -1}, {}), 0);
  EXPECT_EQ(one({-kInf, -5, -kInf}, {}), 1);
  EXPECT_EQ(one({-1e300}, {}), 0);
}

TEST(Sampler, GreedyIgnoresFiltersAndRandomNumbers) {
  EXPECT_EQ(drawn({1, 1, 1}, {.top_k = 3, .top_p = 0.9, .min_p = 0.1}), Ids{0});
  EXPECT_EQ(one({1, 1, 1}, {.temperature = -0.0, .seed = 99}), 0);
}

TEST(Sampler, TopKKeepsTheLowestIdsOfEquals) {
  EXPECT_EQ(drawn({1, 2, 2, 2}, {.temperature = 1, .top_k = 2}), (Ids{1, 2}));
  EXPECT_EQ(drawn({2, 2, 2}, {.temperature = 5, .top_k = 1}), Ids{0});
  EXPECT_EQ(drawn({2, 2, 2}, {.temperature = 1, .top_k = 3}), (Ids{0, 1, 2}));
  EXPECT_EQ(drawn({2, 2, 2}, {.temperature = 1, .top_k = std::numeric_limits<int>::max()}), (Ids{0, 1, 2}));
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesIt) {
  const auto logits = logs({0.2, 0.5, 0.3});
  EXPECT_EQ(drawn(logits, {.temperature = 1, .top_p = 0.49}), Ids{1});
  EXPECT_EQ(drawn(logits, {.temperature = 1, .top_p = 0.51}), (Ids{1, 2}));
  EXPECT_EQ(drawn(logits, {.temperature = 1, .top_p = 0.79}), (Ids{1, 2}));
  EXPECT_EQ(drawn(logits, {.temperature = 1, .top_p = 0.81}), (Ids{0, 1, 2}));
  EXPECT_EQ(drawn(logits, {.temperature = 1, .top_p = 1}), (Ids{0, 1, 2}));
  EXPECT_EQ(drawn(logits, {.temperature = 1, .top_p = 5e-324}), Ids{1});
  // Exactly reached: two of four equal ones make a half, and the lowest ids stay.
  EXPECT_EQ(drawn({7, 7, 7, 7}, {.temperature = 1, .top_p = 0.5}), (Ids{0, 1}));
}

TEST(Sampler, TopPCountsTheProbabilitiesThatTopKLeft) {
  const auto logits = logs({0.4, 0.3, 0.2, 0.1});
  EXPECT_EQ(drawn(logits, {.temperature = 1, .top_p = 0.5}), (Ids{0, 1}));
  EXPECT_EQ(drawn(logits, {.temperature = 1, .top_k = 2, .top_p = 0.5}), Ids{0});
}

TEST(Sampler, MinPIsRelativeToTheLargest) {
  const auto logits = logs({0.2, 0.5, 0.3});
  EXPECT_EQ(drawn(logits, {.temperature = 1, .min_p = 0.61}), Ids{1});
  EXPECT_EQ(drawn(logits, {.temperature = 1, .min_p = 0.59}), (Ids{1, 2}));
  EXPECT_EQ(drawn(logits, {.temperature = 1, .min_p = 0.41}), (Ids{1, 2}));
  EXPECT_EQ(drawn(logits, {.temperature = 1, .min_p = 0.39}), (Ids{0, 1, 2}));
  EXPECT_EQ(drawn({1, 2, 2, 1}, {.temperature = 1, .min_p = 1}), (Ids{1, 2}));
  EXPECT_EQ(drawn({1, 2, 2, 1}, {.temperature = 1, .top_k = 3, .min_p = 1}), (Ids{1, 2}));
  EXPECT_EQ(drawn(logits, {.temperature = 1, .top_p = 0.99, .min_p = 0.59}), (Ids{1, 2}));
  // Temperature comes first: it lifts the ratio 0.4 to its root, 0.63.
  EXPECT_EQ(drawn(logits, {.temperature = 2, .min_p = 0.61}), (Ids{0, 1, 2}));
}

TEST(Sampler, ExtremeTemperaturesAreGreedyOrFlat) {
  for (const double cold : {5e-324, 1e-300, 1e-5}) {
    EXPECT_EQ(drawn({1, 3, 2, 3}, {.temperature = cold}), (Ids{1, 3}));
    EXPECT_EQ(drawn({1, 3, 2, 3}, {.temperature = cold, .top_p = 0.5}), Ids{1});
  }
  EXPECT_EQ(drawn({-1e5, 1e5, 0, -kInf}, {.temperature = 1e308}), (Ids{0, 1, 2}));
  EXPECT_EQ(drawn({-1.7e308, 1.7e308}, {.temperature = 1}), Ids{1});
}

TEST(Sampler, MinusInfinityIsNeverDrawn) {
  for (const SamplingParams params : {SamplingParams{.temperature = 3}, SamplingParams{.temperature = 3, .top_k = 3},
                                      SamplingParams{.temperature = 3, .top_p = 0.999999}, SamplingParams{}}) {
    EXPECT_EQ(drawn({-kInf, -kInf, 1, -kInf}, params), Ids{2});
  }
}

TEST(Sampler, RepetitionPenaltyDividesPositiveAndMultipliesNegativeLogitsOnce) {
  const SamplingParams penalty{.repetition_penalty = 2};
  EXPECT_EQ(one({4, 3, -9}, penalty), 0);
  EXPECT_EQ(one({4, 3, -9}, penalty, {0}), 1);                   // 2, 3
  EXPECT_EQ(one({4, 1.5, -9}, penalty, {0, 0, 0}), 0);           // 2, once
  EXPECT_EQ(one({-2, -3, -9}, penalty, {0}), 1);                 // -4, -3
  EXPECT_EQ(one({0, -3, -9}, penalty, {0}), 0);                  // 0 stays
  EXPECT_EQ(one({1, 3}, {.repetition_penalty = 0.25}, {0}), 0);  // a reward: 4, 3
  EXPECT_EQ(one({4, 3}, {.repetition_penalty = 1}, {0}), 0);
  EXPECT_EQ(one({4, 4}, penalty, {0, 1}), 0);  // equals stay equal
  EXPECT_EQ(drawn({4, 3, 2.5}, {.temperature = 1, .top_k = 2, .repetition_penalty = 2}, {0}), (Ids{1, 2}));
}

TEST(Sampler, FloatAndDoubleRowsGiveTheSameIds) {
  std::vector<float> narrow;
  for (int i = 0; i < 300; ++i) narrow.push_back(static_cast<float>(std::sin(i * 1.7) * 4));
  const std::vector<double> wide(narrow.begin(), narrow.end());
  const SamplingParams params{.temperature = 0.9, .top_p = 0.95, .repetition_penalty = 1.2, .seed = 3};
  const std::vector<TokenId> history{5, 17};
  for (Pos position = 0; position < 500; ++position) {
    const auto id = sample::sample(narrow, history, params, 1, position);
    ASSERT_TRUE(id);
    ASSERT_EQ(*id, one(wide, params, history, 1, position));
  }
}

// A batch, a preemption or a retry changes the order of calls, never the key.
TEST(Sampler, ADrawDependsOnSeedSequenceAndPositionAlone) {
  const std::vector<double> flat(1000, 0.5);
  const SamplingParams params{.temperature = 1, .seed = 42};
  std::vector<TokenId> forward, interleaved(40);
  for (std::uint64_t sequence = 0; sequence < 4; ++sequence) {
    for (Pos position = 0; position < 10; ++position) forward.push_back(one(flat, params, {}, sequence, position));
  }
  for (Pos position = 9; position >= 0; --position) {
    for (std::uint64_t sequence = 0; sequence < 4; ++sequence) {
      interleaved[sequence * 10 + static_cast<std::size_t>(position)] = one(flat, params, {}, sequence, position);
    }
  }
  EXPECT_EQ(forward, interleaved);
  EXPECT_GT(Ids(forward.begin(), forward.end()).size(), 30u);
  EXPECT_NE(one(flat, params), one(flat, {.temperature = 1, .seed = 43}));
}

TEST(SamplerErrors, NameTheLogitThatIsNoNumber) {
  for (const double temperature : {0.0, 1.0}) {
    const SamplingParams params{.temperature = temperature};
    EXPECT_THAT(error_of({1, 2, kNan}, params), HasSubstr("token 2 is nan"));
    EXPECT_THAT(error_of({kNan, 2}, params), HasSubstr("token 0 is nan"));
    EXPECT_THAT(error_of({1, kInf, 1}, params), HasSubstr("token 1 is inf"));
    EXPECT_THAT(error_of({-kInf, -kInf}, params), HasSubstr("none of 2 logits"));
    EXPECT_THAT(error_of({}, params), HasSubstr("none of 0 logits"));
  }
  EXPECT_THAT(error_of({1, 1e300}, {.repetition_penalty = 1e-300}, {1}),
              HasSubstr("token 1 is inf (after the repetition"));
  EXPECT_THAT(error_of({-1e300}, {.repetition_penalty = 1e300}, {0}), HasSubstr("none of 1 logits"));
}

TEST(SamplerErrors, NameTheTokenOfTheHistoryThatHasNoLogit) {
  const SamplingParams params{.repetition_penalty = 2};
  EXPECT_THAT(error_of({1, 2}, params, {0, 2}), HasSubstr("token 2"));
  EXPECT_THAT(error_of({1, 2}, params, {-1}), HasSubstr("token -1"));
}

TEST(SamplerErrors, NameTheParameterItsValueAndItsRange) {
  const auto refused = [](const SamplingParams& params) {
    EXPECT_FALSE(sample::sample(std::vector<double>{1, 2}, {}, params, 0, 0));
    const auto ok = sample::check(params);
    if (ok) return std::string("accepted");
    EXPECT_EQ(ok.error().code, Code::invalid_argument);
    return ok.error().message;
  };
  for (const double bad : {-1.0, kNan, kInf, -kInf}) {
    EXPECT_THAT(refused({.temperature = bad}), HasSubstr("temperature is "));
  }
  for (const double bad : {0.0, -0.5, 1.0001, kNan, kInf}) {
    EXPECT_THAT(refused({.top_p = bad}), HasSubstr("top_p is "));
  }
  for (const double bad : {-0.1, 1.0001, kNan, kInf}) {
    EXPECT_THAT(refused({.min_p = bad}), HasSubstr("min_p is "));
  }
  for (const double bad : {0.0, -1.0, kNan, kInf}) {
    EXPECT_THAT(refused({.repetition_penalty = bad}), HasSubstr("repetition_penalty is "));
  }
  EXPECT_EQ(refused({.top_k = -1}), "top_k is -1, allowed: at least 0");
  EXPECT_EQ(refused({.top_p = 1.5}), "top_p is 1.5, allowed: above 0, at most 1");
}

TEST(Sampler, AcceptsTheEndsOfEveryRange) {
  EXPECT_TRUE(sample::check({}));
  EXPECT_TRUE(sample::check({.temperature = 1e308, .top_k = 1, .top_p = 1, .min_p = 1, .repetition_penalty = 1e-308}));
}

}  // namespace
}  // namespace stet::sample_test
