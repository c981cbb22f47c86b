// What is said to be exact past the limit is compared; what is wrong there is seen.
#include "lab/limit.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "lab/break_play.hpp"
#include "lab/pairs.hpp"

namespace stet::lab {
namespace {

const std::string kTrained = STET_SOURCE_DIR "/models/shakespeare-char";
const std::string kSmall = "random:char,layers=2,width=32,heads=4,ctx=48";
const std::string kLlama = "random:llama-tiny,ctx=200";

LimitOptions options(const std::string& model) {
  LimitOptions o;
  o.model = model;
  o.learned = kSmall;
  o.tries = 1;
  return o;
}

LimitReport measured(const LimitOptions& o) {
  auto report = measure_limit(o, {});
  EXPECT_TRUE(report) << report.error().message;
  return *report;
}

TEST(Limit, RecomputingAndTurningAreExactAndSlidingIsNot) {
  for (const auto& [model, limit] : {std::pair{kTrained, 32}, {kSmall, 48}, {kLlama, 64}}) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      LimitOptions o = options(model);
      o.dtype = dtype;
      o.limit = limit;
      o.lengths = {limit / 2, 2 * limit};
      const LimitReport report = measured(o);
      EXPECT_TRUE(report.holds()) << model;
      EXPECT_EQ(report.limit, limit);
      EXPECT_EQ(report.fitting, limit - 1);
      EXPECT_EQ(report.differing, 0U);
      EXPECT_GT(report.compared, 0U);
      EXPECT_EQ(report.rotary.differing, 0U);
      EXPECT_LT(report.rotary.reserved, report.rotary.reserved_masked);
      EXPECT_GT(report.rotary.tokens, report.rotary.window);
      EXPECT_LT(report.slide.agreeing, report.slide.asked);
      ASSERT_EQ(report.runs.size(), 4U);
      EXPECT_EQ(report.runs[0].past, 0);
      EXPECT_EQ(report.runs[2].past, limit);
      EXPECT_EQ(report.runs[2].seconds.size(), static_cast<std::size_t>(2 * limit));
    }
  }
}

TEST(Limit, WhatAModelCannotDoIsShownOnAnother) {
  const LimitReport gpt2 = measured(options(kSmall)), llama = measured(options(kLlama));
  EXPECT_FALSE(gpt2.slide.stand_in);
  EXPECT_TRUE(gpt2.rotary.stand_in);
  EXPECT_EQ(gpt2.rotary.model, "random:llama-tiny");
  EXPECT_FALSE(gpt2.slide_seconds.empty());
  EXPECT_TRUE(llama.slide.stand_in);
  EXPECT_EQ(llama.slide.model, kSmall);
  EXPECT_FALSE(llama.rotary.stand_in);
  EXPECT_TRUE(llama.slide_seconds.empty());
}

// The report does not hold when anything in it differs.
TEST(Limit, CanFail) {
  LimitReport report = measured(options(kSmall));
  ASSERT_TRUE(report.holds());
  LimitReport other = report;
  other.differing = 1;
  EXPECT_FALSE(other.holds());
  other = report;
  other.rotary.differing = 1;
  EXPECT_FALSE(other.holds());
  other = report;
  other.slide.with.differing = 0;
  EXPECT_FALSE(other.holds());
}

// Past the limit both sides read the last `limit` tokens: not one less, and nothing is left of the rows before.
TEST(Limit, ThePlayPastTheLimitIsAForwardOfTheLastWindow) {
  const auto loaded = *engine::load(kSmall, DType::f32);
  Play play;
  play.prompts = {random_ids(loaded.model->config(), 5, 0, 0)};
  play.steps = 60;
  play.limit = 48;
  const auto played = lab::play(*loaded.model, play, {});
  ASSERT_TRUE(played);
  Ids all = play.prompts[0];
  all.insert(all.end(), played->ids[0].begin(), played->ids[0].end());
  const std::size_t row = static_cast<std::size_t>(loaded.model->config().vocab) * sizeof(float);
  for (const Pos window : {48, 47}) {
    // The last logits are those behind all but the last token.
    const auto once = run(*loaded.model, in_chunks(Ids(all.end() - 1 - window, all.end() - 1), window), {}, {});
    ASSERT_TRUE(once);
    EXPECT_EQ(std::memcmp(once->elements.data() + once->elements.size() - row,
                          played->logits[0].data() + played->logits[0].size() - row, row) == 0,
              window == 48);
  }
}

TEST(Limit, DefaultsAreThePublishedLengthsBesideTheirTimes) {
  LimitOptions o = options(kTrained);
  const LimitReport report = measured(o);
  ASSERT_EQ(report.runs.size(), 4U);
  EXPECT_EQ(report.runs[0].tokens, 100);
  EXPECT_EQ(report.runs[2].tokens, 300);
  EXPECT_EQ(report.runs[2].past, 172);
  EXPECT_EQ(report.runs[0].published, 0.1);
  EXPECT_EQ(report.runs[1].published, 0);
  EXPECT_EQ(report.runs[2].published, 3.5);
  EXPECT_EQ(report.runs[3].published, 4.2);
  o.limit = 64;
  EXPECT_EQ(measured(o).runs[2].tokens, 150);
  EXPECT_EQ(measured(o).runs[2].published, 0);
}

TEST(Limit, RefusesWhatCannotBe) {
  const auto refusal = [](auto change) {
    LimitOptions o = options(kSmall);
    change(o);
    const auto report = measure_limit(o, {});
    return report ? std::string() : report.error().message;
  };
  EXPECT_THAT(refusal([](LimitOptions& o) { o.limit = 49; }), testing::HasSubstr("context of 48"));
  EXPECT_THAT(refusal([](LimitOptions& o) { o.limit = 11; }), testing::HasSubstr("11 tokens: must be 12"));
  EXPECT_THAT(refusal([](LimitOptions& o) { o.lengths = {5, 0}; }), testing::HasSubstr("0 new tokens"));
  EXPECT_THAT(refusal([](LimitOptions& o) { o.model = "no/such/folder"; }), testing::HasSubstr("no/such/folder"));
  LimitCallbacks stop;
  stop.keep_going = [] { return false; };
  EXPECT_EQ(measure_limit(options(kSmall), stop).error().code, Code::interrupted);
}

TEST(Limit, TheReportHasTheStepTimesAndTheTable) {
  const LimitReport report = measured(options(kSmall));
  const report::Report page = report_of(report);
  ASSERT_EQ(page.sections.size(), 1U);
  const report::Plot& plot = page.sections[0].plots.front();
  ASSERT_EQ(plot.series.size(), 3U);
  EXPECT_EQ(plot.series[0].points.size(), static_cast<std::size_t>(report.runs.back().tokens));
  EXPECT_EQ(plot.marks.front().x, 48);
  EXPECT_EQ(table_of(report).rows.size(), 7U);
}

}  // namespace
}  // namespace stet::lab
