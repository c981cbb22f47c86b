// Each fault does what it says and nothing else; and what is wrapped without a fault in it is never reported.
#include "lab/faults.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "lab/break_play.hpp"
#include "lab/pairs.hpp"
#include "weights/checkpoint.hpp"
#include "weights/tensor_check.hpp"

namespace stet::lab {
namespace {

constexpr const char* kGpt2 = "random:char,layers=2,width=32,heads=4,ctx=96";
constexpr const char* kLlama = "random:llama-tiny";

engine::Loaded load(const char* model) {
  auto loaded = engine::load(model, DType::f32);
  EXPECT_TRUE(loaded) << loaded.error().message;
  return std::move(*loaded);
}

Play play_of(const model::Model& model) {
  Play play;
  play.prompts = {random_ids(model.config(), 20, 0, 2)};
  play.steps = 12;
  return play;
}

bool equal(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

// Whether a wrapped play gives the bits of a plain one over the same text.
bool unchanged(const model::Model& model, const Play& play, const Wrap& wrap) {
  const auto plain = lab::play(model, play, {});
  EXPECT_TRUE(plain) << plain.error().message;
  Play wrapped = play;
  wrapped.wrap = wrap;
  const auto other = lab::play(model, wrapped, {}, &plain->ids);
  EXPECT_TRUE(other) << other.error().message;
  return equal(plain->logits.back(), other->logits.back());
}

// ---- Nothing is reported where nothing is wrong

Pair pair_of(const engine::Loaded& loaded, const std::string& name, const Wrap& wrap) {
  const auto& target = kernels::targets().front();
  const ModelConfig& config = loaded.model->config();
  for (const Spec& spec : all_pairs(DType::f32, target, false)) {
    if (spec.name != name) continue;
    auto pair = run_pair(
        spec, {&loaded, random_ids(config, 40, 0, 0), random_ids(config, 40, 0, 1), wrap, {}, &target, ragged, true},
        DType::f32);
    EXPECT_TRUE(pair) << pair.error().message;
    return *pair;
  }
  ADD_FAILURE() << "no pair " << name;
  return {};
}

TEST(Faults, ACuredOneIsNotReported) {
  const auto loaded = load(kGpt2);
  EXPECT_TRUE(pair_of(loaded, "cached and recomputed", tell({}, {})).equal());
  EXPECT_TRUE(pair_of(loaded, "window: contiguous", tell([](const Slice& s) { return s.first; }, {})).equal());
  EXPECT_TRUE(pair_of(loaded, "cache: bf16, pages of 128", fresh_rows(true)).equal());
  EXPECT_FALSE(pair_of(loaded, "cached and recomputed", positions_restart()).equal());
  EXPECT_FALSE(pair_of(loaded, "window: contiguous", naive_slide(13)).equal());
  EXPECT_FALSE(pair_of(loaded, "cache: bf16, pages of 128", fresh_rows()).equal());
}

// ---- Positions that restart are that alone

// A GPT-2 whose every position is the same: nothing can be told by it.
class OnePosition final : public weights::Source {
 public:
  OnePosition(std::unique_ptr<weights::Source> inner, std::int64_t width) : inner_(std::move(inner)), width_(width) {}
  std::span<const weights::TensorInfo> tensors() const noexcept override { return inner_->tensors(); }
  Result<void> read(const weights::TensorInfo& tensor, std::int64_t begin, std::span<float> out) const override {
    return read_as(tensor, begin, out);
  }
  Result<void> read(const weights::TensorInfo& tensor, std::int64_t begin, std::span<double> out) const override {
    return read_as(tensor, begin, out);
  }

 private:
  template <class T>
  Result<void> read_as(const weights::TensorInfo& tensor, std::int64_t begin, std::span<T> out) const {
    if (tensor.name.find("wpe") == std::string::npos) return inner_->read(tensor, begin, out);
    std::vector<T> row(static_cast<std::size_t>(width_));
    if (auto ok = inner_->read(tensor, 0, std::span<T>(row)); !ok) return ok;
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = row[(static_cast<std::size_t>(begin) + i) % row.size()];
    return {};
  }
  std::unique_ptr<weights::Source> inner_;
  std::int64_t width_;
};

TEST(Faults, RestartedPositionsChangeNothingWhereAllPositionsAreOne) {
  auto random = weights::make_random(kGpt2);
  ASSERT_TRUE(random);
  const OnePosition source(std::move(random->source), random->config.width);
  const auto prefix = weights::check_tensors(source, random->config, "one position");
  ASSERT_TRUE(prefix);
  const auto model = model::load(random->config, source, *prefix, DType::f32, {});
  ASSERT_TRUE(model);
  EXPECT_TRUE(unchanged(**model, play_of(**model), positions_restart()));
  // What the mask does is another matter.
  EXPECT_FALSE(unchanged(**model, play_of(**model), square_mask()));
}

TEST(Faults, RestartedPhasesChangeNothingWhereNothingTurns) {
  auto random = weights::make_random(kLlama);
  ASSERT_TRUE(random);
  random->config.rope.scaling = Rope::Scaling::linear;
  random->config.rope.factor = 1e300;  // angles so small that they are 0
  const auto prefix = weights::check_tensors(*random->source, random->config, "still");
  ASSERT_TRUE(prefix);
  const auto model = model::load(random->config, *random->source, *prefix, DType::f32, {});
  ASSERT_TRUE(model);
  EXPECT_TRUE(unchanged(**model, play_of(**model), positions_restart()));
  EXPECT_FALSE(unchanged(**model, play_of(**model), square_mask()));
  EXPECT_FALSE(unchanged(*load(kLlama).model, play_of(**model), positions_restart()));
}

// ---- A square mask

TEST(Faults, UnderASquareMaskTheMiddleOfTheTextDoesNotMatter) {
  for (const char* name : {kGpt2, kLlama}) {
    const auto loaded = load(name);
    Play one = play_of(*loaded.model), other = one;
    for (std::size_t i = 1; i < one.prompts[0].size(); ++i) {
      other.prompts[0][i] = (one.prompts[0][i] + 1) % loaded.model->config().vocab;
    }
    for (const bool broken : {true, false}) {
      one.wrap = other.wrap = broken ? square_mask() : Wrap{};
      const auto a = play(*loaded.model, one, {});
      ASSERT_TRUE(a);
      const auto b = play(*loaded.model, other, {}, &a->ids);
      ASSERT_TRUE(b);
      // The first row of logits is the prompt's own; after it come the decode steps.
      const std::size_t row = static_cast<std::size_t>(loaded.model->config().vocab) * sizeof(float);
      const auto decoded = [row](const Played& p) {
        return std::vector<std::byte>(p.logits[0].begin() + static_cast<std::ptrdiff_t>(row), p.logits[0].end());
      };
      EXPECT_EQ(equal(decoded(*a), decoded(*b)), broken) << name;
    }
  }
}

// ---- Rows that should be gone

TEST(Faults, AStaleTailIsSeenAndPoisonShowsItAtOnce) {
  const auto loaded = load(kGpt2);
  Play play = play_of(*loaded.model);
  EXPECT_TRUE(unchanged(*loaded.model, play, stale_tail()));
  play.drafts = {1, 2, 3};
  EXPECT_TRUE(unchanged(*loaded.model, play, {}));
  const auto right = lab::play(*loaded.model, play, {});
  ASSERT_TRUE(right);
  play.wrap = stale_tail();
  const auto poisoned = lab::play(*loaded.model, play, {}, &right->ids);
  ASSERT_FALSE(poisoned) << "a NaN cannot be sampled from";
  play.poison = false;
  const auto stale = lab::play(*loaded.model, play, {}, &right->ids);
  ASSERT_TRUE(stale);
  const auto far = distances(*loaded.model, *right, *stale);
  EXPECT_EQ(far[0], 0);
  for (std::size_t i = 1; i < far.size(); ++i) EXPECT_GT(far[i], 0) << i;
}

// The tail of one long truncation is grown over in the end.
TEST(Faults, AStaleTailIsOverOnceNewRowsHaveTakenItsPlace) {
  // With one layer the rows themselves do not depend on what was seen.
  const auto loaded = load("random:char,layers=1,width=32,heads=4,ctx=96");
  const Ids ids = random_ids(loaded.model->config(), 40, 0, 0);
  Conditions plain;
  plain.poison = std::nullopt;
  Conditions broken = plain;
  broken.wrap = stale_tail();
  Schedule schedule = in_chunks(ids, 1);
  Action cut;
  cut.truncate = Action::Cut{0, 30};
  schedule.actions.push_back(cut);
  const Schedule again = in_chunks(ids, 1);
  schedule.actions.insert(schedule.actions.end(), again.actions.begin() + 30, again.actions.end());
  const auto a = run(*loaded.model, schedule, plain, {}), b = run(*loaded.model, schedule, broken, {});
  ASSERT_TRUE(a);
  ASSERT_TRUE(b);
  const std::size_t row = static_cast<std::size_t>(loaded.model->config().vocab) * sizeof(float);
  const auto same = [&](std::size_t i) {
    return std::memcmp(a->elements.data() + i * row, b->elements.data() + i * row, row) == 0;
  };
  for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(same(i), i < 30 || i == 39) << i;
}

// ---- A full hit

TEST(Faults, AFullHitThatIsOffByOneHasOneRowTwice) {
  const auto loaded = load(kGpt2);
  Play play = play_of(*loaded.model);
  for (const Pos stored : {1, 10, 19, 20}) {
    play.stored = stored;
    EXPECT_EQ(unchanged(*loaded.model, play, full_hit_off_by_one()), stored < 20) << stored;
  }
  // It is the text with its last token twice.
  Play twice = play_of(*loaded.model);
  twice.prompts[0].push_back(twice.prompts[0].back());
  const auto expected = lab::play(*loaded.model, twice, {});
  ASSERT_TRUE(expected);
  play.stored = 20;
  play.wrap = full_hit_off_by_one();
  const auto got = lab::play(*loaded.model, play, {}, &expected->ids);
  ASSERT_TRUE(got);
  EXPECT_TRUE(equal(expected->logits[0], got->logits[0]));
}

// ---- Rows that are less than what was computed

constexpr int kDim = 8;

struct Stored {
  std::vector<double> keys, values;
};

void write_row(Cache& cache, Seq seq, const std::vector<float>& row) {
  const Append one{seq, 1};
  auto step = cache.begin({&one, 1});
  ASSERT_TRUE(step) << step.error().message;
  const Rows rows{DType::f32, reinterpret_cast<const std::byte*>(row.data()), row.size() * sizeof(float)};
  (*step)->write(0, {0, 1}, rows, rows);
  (*step)->commit();
}

Stored read_row(const Cache& cache, Seq seq, Pos pos) {
  Stored stored{std::vector<double>(kDim), std::vector<double>(kDim)};
  const auto view = cache.peek(seq, 0);
  EXPECT_TRUE(read_key(*view, 0, pos, stored.keys));
  EXPECT_TRUE(read_value(*view, 0, pos, stored.values));
  return stored;
}

TEST(Faults, ForgottenScalesLeaveTheCodesOfTheNewRow) {
  const std::vector<float> rejected = {1, -2, 3, -4, 5, -6, 7, -8}, row = {0.1F, 0.5F, -0.3F, 0.25F, 0, -0.5F, 0.4F, 1};
  for (const Codec codec : {Codec::int8, Codec::int4}) {
    const CacheSpec spec{{{1, kDim, kDim, codec, codec, {}}}};
    CacheOptions options;
    options.max_len = 32;
    auto right = make_cache(spec, options), made = make_cache(spec, options);
    ASSERT_TRUE(right && made);
    auto wrong = forgotten_scales()(std::move(*made));
    ASSERT_TRUE(wrong);
    Seq seq;
    for (Cache* cache : {right->get(), wrong->get()}) {
      seq = *cache->open();
      write_row(*cache, seq, row);
      write_row(*cache, seq, rejected);
      ASSERT_TRUE(cache->truncate(seq, 1));
      write_row(*cache, seq, row);
      write_row(*cache, seq, row);
    }
    EXPECT_EQ(read_row(**right, seq, 0).keys, read_row(**wrong, seq, 0).keys) << "before the cut";
    EXPECT_EQ(read_row(**right, seq, 2).keys, read_row(**wrong, seq, 2).keys) << "behind it";
    const Stored a = read_row(**right, seq, 1), b = read_row(**wrong, seq, 1);
    // All values are larger by one factor: that of the scales, 8 in both codecs.
    for (int d = 0; d < kDim; ++d) {
      const auto i = static_cast<std::size_t>(d);
      EXPECT_NEAR(std::abs(b.keys[i]), std::abs(a.keys[i] * 8), 1e-5) << name_of(codec) << ' ' << d;
      EXPECT_NEAR(std::abs(b.values[i]), std::abs(a.values[i] * 8), 1e-5) << name_of(codec) << ' ' << d;
    }
  }
}

TEST(Faults, FreshRowsMakeAPromptDependOnHowItIsCut) {
  const auto loaded = load(kGpt2);
  const Ids ids = random_ids(loaded.model->config(), 40, 0, 0);
  for (const bool cured : {true, false}) {
    Conditions conditions;
    conditions.cache.codecs = std::pair{Codec::bf16, Codec::bf16};
    conditions.wrap = fresh_rows(cured);
    const auto once = run(*loaded.model, in_chunks(ids, 40), conditions, {});
    const auto by_token = run(*loaded.model, in_chunks(ids, 1), conditions, {});
    ASSERT_TRUE(once && by_token);
    EXPECT_EQ(equal(once->elements, by_token->elements), cured);
  }
}

// ---- Padding

TEST(Faults, PaddedBatchesAreRectangles) {
  const std::vector<Ids> sequences = {{1, 2, 3, 4, 5, 6, 7, 8}, {1, 2, 3, 4}};
  for (const Padding side : {Padding::left, Padding::right}) {
    const Schedule schedule = padded(side, 9)(sequences, 5);
    const Action& prompts = schedule.actions.front();
    ASSERT_EQ(prompts.append.size(), 2U);
    EXPECT_EQ(prompts.append[0].ids, (Ids{1, 2, 3, 4}));
    EXPECT_THAT(prompts.append[0].to, testing::ElementsAre(0, 1, 2, 3));
    EXPECT_EQ(prompts.append[1].ids, side == Padding::left ? (Ids{9, 9, 1, 2}) : (Ids{1, 2, 9, 9}));
    // The logits behind the prompt are those of the last row: on the right that is one of padding.
    EXPECT_THAT(prompts.append[1].to,
                side == Padding::left ? testing::ElementsAre(-1, -1, 0, 1) : testing::ElementsAre(0, -1, -1, 1));
    EXPECT_EQ(schedule.actions.size(), 5U);
    EXPECT_EQ(schedule.actions[1].append.size(), 2U);
    EXPECT_EQ(schedule.actions[3].append.size(), 1U);
  }
}

}  // namespace
}  // namespace stet::lab
