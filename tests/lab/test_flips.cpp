// What flips reports, by other ways to the same: whole texts made by the engine's own loop, logits read in one go.
#include "lab/flips.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lab/paths.hpp"

namespace stet::lab {
namespace {

using testing::HasSubstr;

const std::string kModel = "random:char,layers=2,width=32,heads=4,ctx=80,vocab=65";
constexpr int kVocab = 65, kSteps = 40;

EvalInput input_of(Ids ids) {
  EvalInput input;
  input.name = "some ids";
  input.ids = std::move(ids);
  return input;
}

FlipOptions options_of(std::vector<DType> dtypes, std::vector<KvCodecs> kv) {
  FlipOptions options;
  options.model = kModel;
  options.dtypes = std::move(dtypes);
  options.kv = std::move(kv);
  options.steps = kSteps;
  options.threads = 2;
  return options;
}

const Ids kPrompt = {3, 1, 4, 1, 5, 9, 2, 6};

Conditions in_codec(Codec codec) {
  Conditions conditions;
  conditions.cache.codecs = {{codec, codec}};
  return conditions;
}

// Greedy ids of a model and cache, by the engine's step loop.
Ids greedy(DType dtype, const Conditions& conditions) {
  const auto loaded = engine::load(kModel, dtype);
  EXPECT_TRUE(loaded);
  const auto out = generate(*loaded, kPrompt, kSteps, {}, false, conditions, {});
  EXPECT_TRUE(out);
  Ids ids(out->elements.size() / sizeof(TokenId));
  std::memcpy(ids.data(), out->elements.data(), out->elements.size());
  return ids;
}

// Logits of all positions of the prompt and the ids but the last, in one step.
std::vector<float> logits_of(DType dtype, const Conditions& conditions, const Ids& made) {
  const auto loaded = engine::load(kModel, dtype);
  EXPECT_TRUE(loaded);
  Ids ids = kPrompt;
  ids.insert(ids.end(), made.begin(), made.end() - 1);
  const auto out = run(*loaded->model, in_chunks(ids, static_cast<Pos>(ids.size())), conditions, {});
  EXPECT_TRUE(out);
  std::vector<float> logits(out->elements.size() / sizeof(float));
  std::memcpy(logits.data(), out->elements.data(), out->elements.size());
  return {logits.begin() + static_cast<std::ptrdiff_t>(kPrompt.size() - 1) * kVocab, logits.end()};
}

struct Case {
  DType dtype;
  Codec codec;
};

TEST(Flips, FirstFlipIsWhereTextsPartAndDistancesAreThoseOfTheLogits) {
  const Ids plain = greedy(DType::f32, {});
  const auto expected = logits_of(DType::f32, {}, plain);
  double scale = 0;
  for (const float v : expected) scale = std::max(scale, std::abs(static_cast<double>(v)));
  const std::vector<Case> cases = {{DType::f16, Codec::f32},  {DType::bf16, Codec::f32}, {DType::int8, Codec::f32},
                                   {DType::int4, Codec::f32}, {DType::f32, Codec::f16},  {DType::f32, Codec::bf16},
                                   {DType::f32, Codec::int8}, {DType::f32, Codec::int4}};
  const auto report =
      flips(options_of({DType::f16, DType::bf16, DType::int8, DType::int4}, {{Codec::f16, Codec::f16},
                                                                             {Codec::bf16, Codec::bf16},
                                                                             {Codec::int8, Codec::int8},
                                                                             {Codec::int4, Codec::int4}}),
            input_of(kPrompt), {});
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->ids, plain);
  EXPECT_EQ(report->prompt, 8);
  EXPECT_EQ(report->steps, kSteps);
  EXPECT_TRUE(report->equal());
  ASSERT_EQ(report->rows.size(), cases.size() + 1);
  EXPECT_EQ(report->rows[0].largest, 0);
  EXPECT_EQ(report->rows[0].flips, 0);
  int flipped = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const FlipRow& row = report->rows[i + 1];
    SCOPED_TRACE(name_of(cases[i].dtype) + std::string(" weights, cache ") + row.kv);
    EXPECT_EQ(row.dtype, cases[i].dtype);
    const Conditions conditions = in_codec(cases[i].codec);

    const Ids own = greedy(cases[i].dtype, conditions);
    const auto parts = std::mismatch(plain.begin(), plain.end(), own.begin());
    ASSERT_EQ(row.first.has_value(), parts.first != plain.end());
    if (row.first) {
      ++flipped;
      EXPECT_EQ(row.first->step, parts.first - plain.begin() + 1);
      EXPECT_EQ(row.first->was, *parts.first);
      EXPECT_EQ(row.first->is, *parts.second);
      const float* at = &expected[static_cast<std::size_t>(row.first->step - 1) * kVocab];
      EXPECT_EQ(row.first->margin, static_cast<double>(at[row.first->was]) - at[row.first->is]);
      EXPECT_GE(row.first->margin, 0);
    }

    const auto logits = logits_of(cases[i].dtype, conditions, plain);
    ASSERT_EQ(logits.size(), expected.size());
    double largest = 0, sum = 0;
    int other = 0;
    for (int step = 0; step < kSteps; ++step) {
      double distance = 0;
      const float *a = &expected[static_cast<std::size_t>(step) * kVocab],
                  *b = &logits[static_cast<std::size_t>(step) * kVocab];
      for (int v = 0; v < kVocab; ++v) distance = std::max(distance, std::abs(static_cast<double>(b[v]) - a[v]));
      other += std::max_element(a, a + kVocab) - a != std::max_element(b, b + kVocab) - b ? 1 : 0;
      EXPECT_EQ(row.distances[static_cast<std::size_t>(step)], distance);
      largest = std::max(largest, distance);
      sum += distance;
    }
    EXPECT_EQ(row.largest, largest);
    EXPECT_GT(row.largest, 0);
    EXPECT_NEAR(row.mean, sum / kSteps, 1e-12);
    EXPECT_DOUBLE_EQ(row.relative, largest / scale);
    EXPECT_EQ(row.flips, other);
    EXPECT_EQ(row.compared, static_cast<std::size_t>(kSteps * kVocab));
    EXPECT_EQ(row.differing, 0U);
  }
  EXPECT_GT(flipped, 0) << "this model shows no flip: the test would not see a wrong one";
  EXPECT_LT(flipped, 8);
}

TEST(Flips, CachesOfSomeLayersAndDoublesAreRowsToo) {
  const auto report = flips(options_of({DType::f64}, {{Codec::int8, Codec::int4, 1, 1}}), input_of(kPrompt), {});
  ASSERT_TRUE(report) << report.error().message;
  ASSERT_EQ(report->rows.size(), 3U);
  EXPECT_EQ(report->rows[1].dtype, DType::f64);
  EXPECT_LT(report->rows[1].relative, 1e-4);
  EXPECT_EQ(report->rows[2].kv, "1:int8,int4");
  EXPECT_TRUE(report->equal());
}

TEST(Flips, SizesFollowTheContext) {
  FlipOptions options = options_of({DType::f32}, {});
  options.steps = 0;
  const auto report = flips(options, input_of(Ids(200, 1)), {});  // half of the context each
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->prompt, 40);
  EXPECT_EQ(report->steps, 40);
  EXPECT_EQ(report->rows.size(), 1U);
  options.prompt = 8;
  EXPECT_EQ(flips(options, input_of(Ids(8, 1)), {})->steps, 72);  // as many as fit, up to 100
  options.steps = 73;
  EXPECT_THAT(flips(options, input_of(Ids(8, 1)), {}).error().message, HasSubstr("8 tokens of prompt and 73 steps"));
}

TEST(Flips, WrongInputIsRefused) {
  const auto error_of = [](const FlipOptions& options, const EvalInput& input, const EvalCallbacks& callbacks = {}) {
    const auto report = flips(options, input, callbacks);
    EXPECT_FALSE(report);
    return report ? Error{} : report.error();
  };
  const FlipOptions options = options_of({DType::int8}, {});
  EXPECT_THAT(error_of(options, input_of({})).message, HasSubstr("no token"));
  EXPECT_THAT(error_of(options, input_of({1, 65})).message, HasSubstr("65"));
  EXPECT_EQ(error_of(options_of({}, {{Codec::int8, Codec::int8, 2, 2}}), input_of(kPrompt)).code,
            Code::invalid_argument);
  EvalInput text = input_of({});
  text.is_text = true;
  text.text = "x";
  EXPECT_EQ(error_of(options, text).code, Code::unsupported);
  EvalCallbacks stop;
  int asked = 0;
  stop.keep_going = [&] { return asked++ < 30; };
  EXPECT_EQ(error_of(options, input_of(kPrompt), stop).code, Code::interrupted);
}

TEST(Flips, ReportHasARowAndACurveForEachType) {
  const auto result =
      flips(options_of({DType::int8, DType::int4}, {{Codec::int4, Codec::int4}}), input_of(kPrompt), {});
  ASSERT_TRUE(result);
  const report::Report page = report_of(*result);
  ASSERT_EQ(page.sections.size(), 1U);
  const report::Section& section = page.sections[0];
  ASSERT_EQ(section.tables.size(), 1U);
  EXPECT_EQ(section.tables[0].rows.size(), 4U);
  for (const auto& row : section.tables[0].rows) EXPECT_EQ(row.size(), section.tables[0].columns.size());
  ASSERT_EQ(section.plots.size(), 2U);
  EXPECT_EQ(section.plots[0].series.size(), 2U);
  EXPECT_EQ(section.plots[1].series.size(), 1U);
  EXPECT_EQ(section.plots[0].series[0].points.size(), static_cast<std::size_t>(kSteps));
  EXPECT_THAT(page.summary, HasSubstr("equal to the bit"));
}

// One bit of one stored key, in the cache that is read token by token: every type sees it, and it is said loudly.
TEST(Flips, OneDamagedBitIsSeen) {
  FlipOptions options = options_of({DType::int8}, {{Codec::f16, Codec::f16}});
  options.wrap = planted(Plant::flip_bit, 3);
  const auto wrong = flips(options, input_of(kPrompt), {});
  ASSERT_TRUE(wrong) << wrong.error().message;
  EXPECT_FALSE(wrong->equal());
  ASSERT_EQ(wrong->rows.size(), 3U);
  const report::Report page = report_of(*wrong);
  const std::string table = report::text_of(page.sections[0].tables[0]);
  for (const FlipRow& row : wrong->rows) {
    EXPECT_FALSE(row.equal());
    EXPECT_GT(row.differing, 0U) << row.kv;
    EXPECT_THAT(table, HasSubstr("NO: " + std::to_string(row.differing) + " of"));
  }
  EXPECT_THAT(page.summary, HasSubstr("fault"));
}

}  // namespace
}  // namespace stet::lab
