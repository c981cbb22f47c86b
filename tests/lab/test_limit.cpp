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

std::string rotary_of(const LimitOptions& o) {
  return o.model == kLlama ? o.model : o.rotary;
}

// What the numbers of the rotary window say must be true of caches made here: one that drops rows, fed token by token,
// and one that keeps all.
void expect_a_ring(const LimitReport& report, const std::string& model, DType dtype) {
  const auto loaded = *engine::load(model, dtype);
  const LimitReport::Rotary& rotary = report.rotary;
  for (const Retain retain : {Retain::visible, Retain::all}) {
    CacheSpec spec = loaded.model->cache_spec();
    for (LayerSpec& layer : spec.layers) layer.span = {rotary.window, 0};
    CacheOptions one;
    one.retain = retain;
    one.max_len = rotary.tokens + 1;
    one.max_step_tokens = 1;
    const auto cache = *make_cache(spec, one);
    const Seq seq = *cache->open();
    for (int t = 0; t < rotary.tokens; ++t) {
      const Append append{seq, 1};
      (*cache->begin({&append, 1}))->commit();
    }
    const bool drops = retain == Retain::visible;
    EXPECT_EQ(drops ? rotary.reserved : rotary.reserved_masked, cache->usage().reserved);
    if (drops) {
      EXPECT_EQ(rotary.evicted, cache->peek(seq, 0)->first);
    }
  }
  EXPECT_GT(rotary.evicted, rotary.window);  // the ring has wrapped
  EXPECT_LT(rotary.reserved, rotary.reserved_masked);
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
      expect_a_ring(report, rotary_of(o), dtype);
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

// One bit of one stored key is enough, in either of the comparisons alone.
TEST(Limit, OneDamagedBitIsSeen) {
  const LimitReport sound = measured(options(kSmall));
  ASSERT_TRUE(sound.holds());
  for (const bool dropping : {false, true}) {
    LimitOptions o = options(kSmall);
    o.wrap = [dropping](std::unique_ptr<Cache> cache) -> Result<std::unique_ptr<Cache>> {
      if ((cache->options().retain == Retain::visible) != dropping) return cache;
      return std::make_unique<PlantedCache>(std::move(cache), Plant::flip_bit, 3);
    };
    const LimitReport report = measured(o);
    EXPECT_EQ(report.differing > 0, !dropping);
    EXPECT_EQ(report.rotary.differing > 0, dropping);
    EXPECT_FALSE(report.holds());
    const std::string text = report::text_of(table_of(report));
    EXPECT_EQ(text.find("NOT exact") != text.npos, dropping);
    if (!dropping) {
      EXPECT_THAT(words_of(report)[0], testing::HasSubstr(std::to_string(report.differing) + " of"));
    }
  }
}

// A slide that verify does not catch, as if it had not been put into the pair.
TEST(Limit, AnUncaughtSlideDoesNotHold) {
  LimitReport report = measured(options(kSmall));
  ASSERT_TRUE(report.holds());
  report.slide.with = report.slide.without;
  EXPECT_FALSE(report.holds());
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

// A published time says nothing beside a model of another shape.
TEST(Limit, OtherModelsHaveNoPublishedTimes) {
  for (const char* model :
       {"random:char,layers=3,width=128,heads=4,ctx=128", "random:char,layers=4,width=64,heads=4,ctx=128",
        "random:char,layers=4,width=128,heads=4,ctx=160", "random:llama-tiny,ctx=128"}) {
    LimitOptions o = options(model);
    o.limit = 128;
    o.lengths = {100};
    for (const LimitRun& run : measured(o).runs) EXPECT_EQ(run.published, 0) << model;
    const report::Table table = table_of(measured(o));
    for (const auto& row : table.rows) EXPECT_EQ(row[6].shown, "-") << model;
  }
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
