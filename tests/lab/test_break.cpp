// Every bug must be seen where it is, and nothing where it is not.
#include "lab/break.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "lab/bugs.hpp"

namespace stet::lab {
namespace {

const std::string kTrained = STET_SOURCE_DIR "/models/shakespeare-char";
const std::string kSmall = "random:char,layers=2,width=32,heads=4,ctx=80";

constexpr int kSteps = 12;  // short texts: sanitizers are slow

BreakOptions options(const std::string& model, std::vector<std::string> bugs = {}, int steps = kSteps) {
  BreakOptions o;
  o.steps = steps;
  o.model = model;
  o.learned = kSmall;
  o.bugs = std::move(bugs);
  return o;
}

BugReport shown(const std::string& model, const std::string& bug, int steps = kSteps) {
  auto report = break_model(options(model, {bug}, steps), {});
  EXPECT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->bugs.size(), 1U);
  return report->bugs.front();
}

double signature(const BugReport& bug, const std::string& field) {
  for (const Signature& one : bug.signature) {
    if (one.field == field) return one.value;
  }
  ADD_FAILURE() << bug.name << " has no " << field;
  return NAN;
}

class Breaks : public testing::TestWithParam<std::tuple<std::string, DType>> {};

TEST_P(Breaks, EveryBugShowsSleepsAndIsCaught) {
  BreakOptions o = options(std::get<0>(GetParam()));
  o.dtype = std::get<1>(GetParam());
  const auto report = break_model(o, {});
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_TRUE(report->caught);
  EXPECT_EQ(report->bugs.size(), bug_names().size());
  for (const BugReport& bug : report->bugs) {
    EXPECT_TRUE(bug.caught()) << bug.name << ": " << bug.with.differing << " with, " << bug.without.differing
                              << " without; " << bug.with.note << bug.without.note;
    EXPECT_GT(bug.with.max_ulp, 1000U) << bug.name << ": that is rounding, not the bug";
    EXPECT_TRUE(bug.sleeps()) << bug.name;
    ASSERT_TRUE(bug.first_logit) << bug.name;
    // Before it shows not a bit is other, and where it shows one is.
    for (int t = 1; t < *bug.first_logit; ++t) EXPECT_EQ(bug.distance[static_cast<std::size_t>(t - 1)], 0) << bug.name;
    EXPECT_GT(bug.distance[static_cast<std::size_t>(*bug.first_logit - 1)], 0) << bug.name;
    if (bug.first_token) {
      EXPECT_GE(*bug.first_token, *bug.first_logit) << bug.name;
      const auto at = static_cast<std::size_t>(*bug.first_token - 1);
      EXPECT_NE(bug.ids_before[at], bug.ids_after[at]) << bug.name;
      EXPECT_TRUE(
          std::equal(bug.ids_before.begin(), bug.ids_before.begin() + *bug.first_token - 1, bug.ids_after.begin()))
          << bug.name;
    } else {
      EXPECT_EQ(bug.ids_before, bug.ids_after) << bug.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Breaks,
                         testing::Combine(testing::Values(kTrained, kSmall, "random:llama-tiny",
                                                          STET_SOURCE_DIR "/tests/golden/mistral-window",
                                                          STET_SOURCE_DIR "/tests/golden/plain"),
                                          testing::Values(DType::f32, DType::f64)),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param);
                           name = name.substr(name.find_last_of("/:") + 1);
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
                           return name + "_" + name_of(std::get<1>(info.param));
                         });

// The published signature: 64 of 65 keys are ignored, and what is left is the first value, exactly.
TEST(Break, UnderASquareMaskOnlyTheFirstValueIsLeft) {
  for (const std::string& model : {kTrained, std::string("random:llama-tiny")}) {
    const BugReport bug = shown(model, "square-mask");
    EXPECT_EQ(signature(bug, "wrong_to_first_value"), 0) << model;
    EXPECT_GT(signature(bug, "right_to_first_value"), 0.1) << model;
    EXPECT_GT(signature(bug, "right_to_wrong"), 0.1) << model;
    EXPECT_EQ(signature(bug, "keys"), 65) << model;
    EXPECT_EQ(signature(bug, "keys_ignored"), 64) << model;
  }
}

// One KV head behind more than a block of keys: its context is cut into blocks, and what is heard must still be of the
// last token.
TEST(Break, AttentionIsHeardHoweverItsContextIsCut) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const auto loaded = *engine::load("random:char,layers=1,width=16,heads=1,ctx=700", dtype);
    Ids ids = random_ids(loaded.model->config(), 601, 0, 0);
    const auto before = attention_of(*loaded.model, ids, {});
    ASSERT_TRUE(before) << before.error().message;
    EXPECT_EQ(before->out.size(), 16U);
    ids.back() = (ids.back() + 1) % loaded.model->config().vocab;
    const auto after = attention_of(*loaded.model, ids, {});
    ASSERT_TRUE(after) << after.error().message;
    EXPECT_NE(before->out, after->out);
    EXPECT_EQ(before->first_value, after->first_value);
    // Under a square mask there is one key, so one block.
    const auto square = attention_of(*loaded.model, ids, square_mask());
    ASSERT_TRUE(square) << square.error().message;
    EXPECT_EQ(square->out, square->first_value);
  }
}

class SilentStep final : public ForwardingStep {
 public:
  using ForwardingStep::ForwardingStep;
  void write(int, HeadRange, Rows, Rows) noexcept override {}
};

class SilentCache final : public ForwardingCache {
 public:
  using ForwardingCache::ForwardingCache;
  Result<std::unique_ptr<Step>> begin(std::span<const Append> appends) override {
    auto step = inner_->begin(appends);
    if (!step) return step;
    return std::make_unique<SilentStep>(std::move(*step));
  }
};

// No row was stored, so attention reads NaN: an error, and no number.
TEST(Break, AttentionThatIsNotHeardIsAnError) {
  const auto loaded = *engine::load(kSmall, DType::f32);
  const auto heard = attention_of(*loaded.model, random_ids(loaded.model->config(), 20, 0, 0),
                                  [](std::unique_ptr<Cache> cache) -> Result<std::unique_ptr<Cache>> {
                                    return std::make_unique<SilentCache>(std::move(cache));
                                  });
  ASSERT_FALSE(heard);
  EXPECT_THAT(heard.error().message, testing::HasSubstr("attention of layer 0"));
}

TEST(Break, TheNaiveSlideIsMeasuredOverFiftySteps) {
  const BugReport bug = shown(kTrained, "naive-slide", 50);
  EXPECT_EQ(bug.prompt.size(), 128U);
  EXPECT_EQ(signature(bug, "steps"), 50);
  EXPECT_LT(signature(bug, "agreement_percent"), 60);
  EXPECT_LE(signature(bug, "apart_percent"), signature(bug, "agreement_percent"));
  EXPECT_GT(bug.repetition_after, bug.repetition_before);
}

TEST(Break, ABugThatTheModelCannotHaveIsShownOnAnother) {
  for (const auto& [model, learned] : {std::pair{kTrained, true}, {std::string("random:llama-tiny"), false}}) {
    EXPECT_EQ(shown(model, "positions-restart").stand_in, !learned);
    EXPECT_EQ(shown(model, "naive-slide").stand_in, !learned);
    EXPECT_EQ(shown(model, "phase-restart").stand_in, learned);
    EXPECT_FALSE(shown(model, "stale-tail").stand_in);
  }
  EXPECT_EQ(shown(kTrained, "phase-restart").model, "random:llama-tiny");
}

TEST(Break, TheSameSeedGivesTheSameReport) {
  const BugReport a = shown(kTrained, "quantised-rollback"), b = shown(kTrained, "quantised-rollback");
  EXPECT_EQ(a.ids_after, b.ids_after);
  EXPECT_EQ(a.distance, b.distance);
  EXPECT_EQ(words_of(a), words_of(b));
}

TEST(Break, RefusesWhatItCannotShow) {
  EXPECT_THAT(break_model(options(kSmall, {"bit-rot"}), {}).error().message,
              testing::AllOf(testing::HasSubstr("bit-rot"), testing::HasSubstr("naive-slide")));
  const auto tiny = break_model(options("random:char,layers=1,width=8,heads=1,ctx=11"), {});
  ASSERT_FALSE(tiny);
  EXPECT_THAT(tiny.error().message, testing::AllOf(testing::HasSubstr("11"), testing::HasSubstr("12")));
  EXPECT_TRUE(break_model(options("random:char,layers=1,width=8,heads=1,ctx=12"), {}));
  EXPECT_THAT(break_model(options("no/such/folder"), {}).error().message, testing::HasSubstr("no/such/folder"));
  BreakCallbacks stop;
  stop.keep_going = [] { return false; };
  EXPECT_EQ(break_model(options(kSmall), stop).error().code, Code::interrupted);
}

TEST(Break, TheReportHasATextForEachBugAndALineInThePlot) {
  const auto report = break_model(options(kTrained), {});
  ASSERT_TRUE(report);
  const report::Report page = report_of(*report);
  EXPECT_EQ(page.sections.size(), bug_names().size() + 1);
  EXPECT_EQ(page.sections.front().plots.front().series.size(), bug_names().size());
  EXPECT_TRUE(page.sections.front().plots.front().y.log);
  for (std::size_t i = 1; i < page.sections.size(); ++i) EXPECT_EQ(page.sections[i].quotes.size(), 2U);
  EXPECT_EQ(table_of(*report).rows.size(), bug_names().size());
}

TEST(Break, RepetitionIsTheShareOfFourGramsSeenBefore) {
  EXPECT_EQ(repetition({}), 0);
  EXPECT_EQ(repetition({1, 1, 1, 1}), 0);
  EXPECT_EQ(repetition({1, 1, 1, 1, 1}), 0.5);
  EXPECT_EQ(repetition({1, 2, 3, 4, 5, 6, 7}), 0);
  EXPECT_EQ(repetition({1, 2, 3, 4, 1, 2, 3, 4}), 0.2);
}

}  // namespace
}  // namespace stet::lab
