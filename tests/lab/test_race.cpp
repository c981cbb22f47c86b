// The race: forms that must agree, and what is counted beside them.
#include "lab/race.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "engine/loaded.hpp"
#include "lab/contexts.hpp"

namespace stet::lab {
namespace {

constexpr Form kForms[] = {Form::at_once, Form::by_rows, Form::growing, Form::contiguous, Form::paged};

struct Setting {
  const char* model;
  DType dtype;
};

class Forms : public ::testing::TestWithParam<Setting> {};

// Every form, and prefill in chunks and with all scores held, against logits of Drive, which verify uses.
TEST_P(Forms, GiveTheBitsOfThePlainCache) {
  const auto loaded = engine::load(GetParam().model, GetParam().dtype);
  ASSERT_TRUE(loaded) << loaded.error().message;
  const model::Model& model = *loaded->model;
  base::ThreadPool pool(2);
  constexpr Pos kPrompt = 21, kAll = 40;
  const Ids ids = random_ids(model.config(), kAll, 3, kFormsStream);
  const auto expected = run(model, in_chunks(ids, kAll), Conditions{}, {});
  ASSERT_TRUE(expected);
  const std::size_t row = static_cast<std::size_t>(model.config().vocab) * size_of(model.dtype());
  for (const Form form : kForms) {
    for (const Pos chunk : {0, 5}) {
      for (const bool odd : {false, true}) {
        FormOptions o;
        o.form = form;
        o.max_len = kAll;
        o.prefill_chunk = chunk;
        o.score_rows = 7;
        o.hold_scores = o.all_logits = odd;
        auto runner = FormRun::make(model, pool, o);
        ASSERT_TRUE(runner);
        for (Pos n = kPrompt; n <= kAll; ++n) {
          const auto logits = runner->step(std::span(ids).first(static_cast<std::size_t>(n)));
          ASSERT_TRUE(logits) << logits.error().message;
          ASSERT_EQ(logits->size(), row);
          ASSERT_EQ(std::memcmp(logits->data(), expected->elements.data() + static_cast<std::size_t>(n - 1) * row, row),
                    0)
              << name_of(form) << ", chunk " << chunk << ", length " << n;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Forms,
                         ::testing::Values(Setting{"random:char,ctx=64", DType::f64},
                                           Setting{"random:char,ctx=64", DType::f32},
                                           Setting{"random:llama-tiny,window=9", DType::f32},
                                           Setting{"random:llama-tiny", DType::int8}));

RaceOptions small_race() {
  RaceOptions o;
  o.model = "random:char,ctx=96";
  o.dtype = DType::f64;
  o.threads = 2;
  o.prompts = {3, 17};
  o.new_tokens = 20;
  return o;
}

TEST(Race, AllStepsOfAllFormsAreComparedAndEqual) {
  const auto result = race(small_race(), {});
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_TRUE(result->equal());
  ASSERT_EQ(result->runs.size(), 10U);
  for (const RaceRun& run : result->runs) {
    EXPECT_EQ(run.compared, run.form == Form::contiguous ? 0 : 20) << name_of(run.form);
    EXPECT_EQ(run.different, 0);
    EXPECT_FALSE(run.estimated);
    double sum = 0;
    for (const double ms : run.step_ms) sum += ms;
    EXPECT_DOUBLE_EQ(run.total_ms, sum);
  }
}

// One bit of one stored key in one of the paths: each experiment must see it.
Wrap one_bit() {
  return [](std::unique_ptr<Cache> inner) -> Result<std::unique_ptr<Cache>> {
    return std::make_unique<PlantedCache>(std::move(inner), Plant::flip_bit, 5);
  };
}

TEST(Race, SeesOneFlippedBit) {
  RaceOptions o = small_race();
  o.wrap = one_bit();
  const auto result = race(o, {});
  ASSERT_TRUE(result);
  EXPECT_FALSE(result->equal());
  for (const RaceRun& run : result->runs) {
    EXPECT_EQ(run.different > 0, run.form == Form::paged) << name_of(run.form);
  }
}

TEST(Contexts, SeeOneFlippedBit) {
  ContextOptions o;
  o.model = "random:char,ctx=64";
  o.contexts = {64};
  o.tries = 1;
  o.wrap = one_bit();
  const auto result = by_context(o, {});
  ASSERT_TRUE(result);
  EXPECT_EQ(result->different, 2);
}

TEST(Memory, SeesOneFlippedBit) {
  MemoryOptions o;
  o.model = "random:char,ctx=64";
  o.wrap = one_bit();
  const auto result = memory_of_forms(o, {});
  ASSERT_TRUE(result);
  EXPECT_GT(result->different, 0);
}

TEST(Race, SortsPromptsAndRunsEachOnce) {
  RaceOptions o = small_race();
  o.prompts = {17, 3, 17};
  const auto result = race(o, {});
  ASSERT_TRUE(result);
  EXPECT_EQ(result->options.prompts, (std::vector<Pos>{3, 17}));
  EXPECT_EQ(result->runs.size(), 10U);
  o.prompts = {0};
  EXPECT_FALSE(race(o, {}));
  o.prompts = {3};
  o.every = 0;
  EXPECT_FALSE(race(o, {}));
}

// The head is the matrix that the model says it is, whatever its width: here the MLP has as many outputs. A step whose
// logits nobody wants has no head.
TEST(Contexts, TellTheHeadFromAMatrixOfItsWidth) {
  const auto loaded = engine::load("random:char,width=64,vocab=256,ctx=64", DType::f32);
  ASSERT_TRUE(loaded) << loaded.error().message;
  const model::Model& model = *loaded->model;
  base::ThreadPool pool(1);
  CacheOptions options;
  options.max_len = 8;
  auto cache = make_cache(model.cache_spec(), options);
  ASSERT_TRUE(cache);
  auto workspace = base::Buffer::allocate(model.workspace_bytes(4));
  ASSERT_TRUE(workspace);
  const auto seq = (*cache)->open();
  ASSERT_TRUE(seq);
  const std::vector<TokenId> ids = {1, 2, 3, 4};
  std::vector<float> logits(256);
  const std::vector<int> last = {3};
  for (const bool wanted : {false, true}) {
    kernels::Profile profile;
    const Append append{*seq, 4};
    auto step = (*cache)->begin({&append, 1});
    ASSERT_TRUE(step);
    model::LogitsOut out;
    if (wanted) out = {last, reinterpret_cast<std::byte*>(logits.data())};
    ASSERT_TRUE(model.forward({&pool, &kernels::targets().front(), nullptr, &profile}, **step, ids, out, *workspace));
    EXPECT_GT(profile.weights_s, 0);
    EXPECT_EQ(profile.head_s > 0, wanted);
  }
}

TEST(Contexts, CompareWithATrainedModelOfTheirShapeAlone) {
  ContextOptions o;
  o.model = "random:char,ctx=64";
  o.contexts = {16};
  o.tries = 1;
  o.trained = STET_SOURCE_DIR "/models/shakespeare-char";
  const auto alike = by_context(o, {});
  ASSERT_TRUE(alike) << alike.error().message;
  EXPECT_TRUE(alike->rows[0].trained_ms);
  o.trained_must_fit = true;
  o.model = "random:char,layers=2,ctx=64";
  const auto other = by_context(o, {});
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().message.find("another shape"), std::string::npos);
  o.trained = "random:char";
  EXPECT_FALSE(by_context(o, {}));
}

// What is asked for before the work is no less than what it takes.
TEST(Forms, TakeNoMoreThanTheySay) {
  for (const char* name : {"random:char,ctx=1400", "random:llama-tiny,ctx=1400",
                           "random:gpt2,layers=1,width=64,heads=2,vocab=70,ctx=1400"}) {
    const auto loaded = engine::load(name, DType::f32);
    ASSERT_TRUE(loaded) << loaded.error().message;
    base::ThreadPool pool(2);
    for (const Form form : kForms) {
      for (const Pos length : {1, 500, 513, 1400}) {
        for (const bool held : {false, true}) {
          FormOptions o;
          o.form = form;
          o.max_len = length;
          o.hold_scores = o.all_logits = held;
          auto runner = FormRun::make(*loaded->model, pool, o);
          ASSERT_TRUE(runner);
          ASSERT_TRUE(runner->step(random_ids(loaded->model->config(), length, 0, kFormsStream)));
          EXPECT_GE(most_bytes(*loaded->model, o), runner->cache_bytes() + runner->allocated_bytes())
              << name << ", " << name_of(form) << ", " << length;
        }
      }
    }
  }
}

TEST(Race, EveryKthStepGivesAnEstimateBetweenTheMeasuredOnes) {
  RaceOptions o = small_race();
  o.every = 6;  // 0, 6, 12, 18 and the last one, 19
  const auto result = race(o, {});
  ASSERT_TRUE(result);
  EXPECT_TRUE(result->equal());
  const RaceRun& run = result->run_of(Form::by_rows, 17);
  EXPECT_TRUE(run.estimated);
  EXPECT_EQ(run.compared, 5);
  double sum = 0;
  for (const std::size_t at : {0, 6, 12}) {
    const double a = run.step_ms[at], b = run.step_ms[at + 6];
    ASSERT_TRUE(std::isfinite(a) && std::isfinite(b));
    sum += a + (a + b) / 2 * 5;  // the five between lie on a line
  }
  EXPECT_NEAR(run.total_ms, sum + run.step_ms[18] + run.step_ms[19], 1e-9);
  EXPECT_TRUE(std::isnan(run.step_ms[7]));
  EXPECT_FALSE(result->run_of(Form::paged, 17).estimated);
}

// Whole cells are copied: up to 16 tokens a step more than the formula says, and half a token less.
TEST(Race, AGrowingCacheCopiesWhatTheFormulaSays) {
  RaceOptions o = small_race();
  o.model = "random:char,ctx=512";
  o.prompts = {128};
  o.new_tokens = 300;
  o.every = 100;
  const auto result = race(o, {});
  ASSERT_TRUE(result);
  const RaceRun& run = result->run_of(Form::growing, 128);
  const double token = 8192;  // 4 layers x 2 x 128 values of 8 bytes
  EXPECT_DOUBLE_EQ(run.copied_formula, token * (427.0 * 427.0 - 128.0 * 128.0) / 2);
  EXPECT_GE(static_cast<double>(run.copied), run.copied_formula - token * 299 / 2);
  EXPECT_LE(static_cast<double>(run.copied), run.copied_formula + token * 299 * 16);
  EXPECT_EQ(result->run_of(Form::contiguous, 128).copied, 0U);
}

TEST(Race, ChoosesLengthsThatFitAndRefusesOthers) {
  RaceOptions o = small_race();
  o.prompts.clear();
  o.new_tokens = 0;
  const auto result = race(o, {});
  ASSERT_TRUE(result);
  EXPECT_EQ(result->options.prompts, (std::vector<Pos>{6, 24, 48}));
  EXPECT_EQ(result->options.new_tokens, 24);
  EXPECT_NE(result->why_smaller, "");
  o.prompts = {90};
  o.new_tokens = 7;
  const auto refused = race(o, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "a prompt of 90 and 7 new tokens do not fit the context of 96");
}

TEST(Race, StopsWhenAsked) {
  int asked = 0;
  RaceCallbacks callbacks;
  callbacks.keep_going = [&] { return ++asked < 60; };
  const auto result = race(small_race(), callbacks);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, Code::interrupted);
}

// The published counts: 6C for layers alone, 776 with the head (C = 128, 65 characters), and GPT-2's.
TEST(Contexts, CountWhereAttentionOvertakesTheRest) {
  ContextOptions o;
  o.model = "random:char,ctx=64";
  o.contexts = {16, 64};
  o.tries = 1;
  const auto result = by_context(o, {});
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_EQ(result->compared, 4);
  EXPECT_EQ(result->different, 0);
  EXPECT_DOUBLE_EQ(result->bend_layers, 768);
  EXPECT_EQ(std::lround(result->bend_with_head), 776);
  EXPECT_NEAR(result->rows[0].counted(), 16, 0.5);
  for (const ContextRow& row : result->rows) {
    const Split& s = row.split;
    EXPECT_NEAR(s.weights + s.attention + s.head + s.rest, row.cached_ms, 1e-9);
    EXPECT_GT(s.weights, 0);
    EXPECT_GT(s.attention, 0);
    EXPECT_GT(s.head, 0);
  }
}

TEST(Contexts, RefuseWhatTheModelDoesNotHave) {
  ContextOptions o;
  o.model = "random:char,ctx=64";
  o.contexts = {65};
  const auto result = by_context(o, {});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message, "a context of 65 is not within the model's 1 to 64");
}

// Scores of whole blocks of 512 as far as they are visible, whatever the form; the cache is as the plan says.
TEST(Memory, CountsScoresCacheAndActivations) {
  MemoryOptions o;
  o.model = "random:char,ctx=1024";
  o.context = 1000;
  o.threads = 2;
  const auto result = memory_of_forms(o, {});
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_EQ(result->compared, 5);
  EXPECT_EQ(result->different, 0);
  ASSERT_EQ(result->rows.size(), 6U);
  const auto& at_once = result->rows[0];
  // Tiles of 24 queries: 22 end within the first block (528 tokens end in the second), of 4 heads and 8 bytes.
  const double scores = 4.0 * 8 * 512 * (21 * 24 * 1 + (1000 - 21 * 24) * 2);
  EXPECT_GE(static_cast<double>(at_once.score_bytes), scores);
  EXPECT_LE(static_cast<double>(at_once.score_bytes), scores * 1.1);
  EXPECT_LT(result->rows[1].score_bytes * 4, at_once.score_bytes);
  EXPECT_EQ(at_once.cache_bytes, 0U);
  EXPECT_GE(at_once.activation_bytes, at_once.score_bytes + 1000 * 8192 / 4);  // one layer's keys and values
  const auto& cached = result->rows[2];
  EXPECT_EQ(cached.score_bytes, 0U);
  EXPECT_GE(cached.cache_bytes, 1000U * 8192);
  EXPECT_LE(cached.cache_bytes, 1008U * 8192 + 4096);
}

}  // namespace
}  // namespace stet::lab
