// The contract of Cache and Step, call by call: what the layouts have in common, on the simplest of them.
#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>
#include <thread>

#include "kv/allocations.hpp"
#include "kv/make_cache.hpp"
#include "kv/support.hpp"

namespace stet::kv_test {
namespace {

const LayerSpec kSmall{2, 3, 5, Codec::f32, Codec::f32, {}};

std::unique_ptr<Cache> make(const CacheSpec& spec, Pos max_len, int max_seqs, bool poison = true) {
  CacheOptions options;
  options.max_len = max_len;
  options.max_seqs = max_seqs;
  if (poison) options.poison = std::numeric_limits<double>::quiet_NaN();
  auto cache = make_cache(spec, options);
  return cache ? std::move(*cache) : nullptr;
}

std::unique_ptr<Step> begin(Cache& cache, std::vector<Append> appends) {
  auto step = cache.begin(appends);
  if (!step) throw std::runtime_error(step.error().message);
  return std::move(*step);
}

template <class T>
Rows rows_of(const std::vector<T>& values, std::size_t width) {
  const DType type = sizeof(T) == 8 ? DType::f64 : DType::f32;
  return {type, reinterpret_cast<const std::byte*>(values.data()), width * sizeof(T)};
}

// Appends rows that a single-layer cache of kSmall keeps as they are: key value r * 100 + column, value value its
// negative.
void append_rows(Cache& cache, Seq seq, int tokens) {
  std::vector<float> k, v;
  for (int r = 0; r < tokens; ++r) {
    for (int i = 0; i < 6; ++i) k.push_back(static_cast<float>(r * 100 + i));
    for (int i = 0; i < 10; ++i) v.push_back(static_cast<float>(-r * 100 - i));
  }
  auto step = begin(cache, {{seq, tokens}});
  step->write(0, {0, 2}, rows_of(k, 6), rows_of(v, 10));
  step->commit();
}

template <class T>
void expect_error(const Result<T>& result, Code code, const std::string& message) {
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, code);
  EXPECT_EQ(result.error().message, message);
}

TEST(Contiguous, KeepsRowsInTheirCells) {
  auto cache = make({{kSmall}}, 40, 1);
  const Seq seq = *cache->open();
  append_rows(*cache, seq, 20);
  const View view = *cache->peek(seq, 0);
  ASSERT_EQ(view.count, 20);
  ASSERT_EQ(view.cells.size(), 2U);
  const auto float_at = [&](int cell, std::size_t bytes) {
    float value = 0;
    std::memcpy(&value, view.base + cell * view.layout->bytes + bytes, sizeof value);
    return value;
  };
  // Position 18 is slot 2 of cell 1. Head 1 starts 192 + 320 bytes into the cell: K [3][16], then V [16][5], of f32.
  EXPECT_EQ(float_at(1, 512 + (0 * 16 + 2) * 4), 1803);
  EXPECT_EQ(float_at(1, 512 + (2 * 16 + 2) * 4), 1805);
  EXPECT_EQ(float_at(1, 512 + 192 + (2 * 5 + 4) * 4), -1809);
  EXPECT_EQ(float_at(0, (1 * 16 + 15) * 4), 1501);
}

TEST(Contiguous, WidensExactlyAndRoundsToNearestEven) {
  const LayerSpec layer{1, 2, 2, Codec::f32, Codec::f64, {}};
  auto cache = make({{layer}}, 16, 1);
  const Seq seq = *cache->open();
  // Halfway between two floats: the even one. Beyond the largest float: infinity. Below the smallest: zero, with its
  // sign.
  const std::vector<double> k = {1 + 0x1p-24, 1 + 0x3p-24, 1e300, -1e-300};
  const std::vector<float> v = {0.1F, -0.0F, std::numeric_limits<float>::denorm_min(), 3e38F};
  auto step = begin(*cache, {{seq, 2}});
  step->write(0, {0, 1}, rows_of(k, 2), rows_of(v, 2));
  step->commit();
  const View view = *cache->peek(seq, 0);
  const double keys[2][2] = {{1, 1 + 0x1p-22}, {std::numeric_limits<double>::infinity(), -0.0}};
  const double values[2][2] = {{0x1.99999ap-4, -0.0}, {0x1p-149, 3e38F}};
  for (int pos = 0; pos < 2; ++pos) {
    std::vector<double> row(2);
    ASSERT_TRUE(read_key(view, 0, pos, row));
    for (int d = 0; d < 2; ++d) EXPECT_TRUE(same_bits(row[d], keys[pos][d])) << pos << ' ' << d;
    ASSERT_TRUE(read_value(view, 0, pos, row));
    for (int d = 0; d < 2; ++d) EXPECT_TRUE(same_bits(row[d], values[pos][d])) << pos << ' ' << d;
  }
}

TEST(Contiguous, AWindowOnlyMasksWhereAllIsRetained) {
  LayerSpec layer = kSmall;
  layer.span.window = 4;
  CacheOptions options;
  options.max_len = 40;
  options.retain = Retain::all;
  auto cache = *make_cache({{layer}}, options);
  const Seq seq = *cache->open();
  append_rows(*cache, seq, 40);
  const View view = *cache->peek(seq, 0);
  EXPECT_EQ(view.first, 0);
  EXPECT_EQ(view.count, 40);
  EXPECT_EQ(view.span.window, 4);
}

TEST(Contiguous, AnAbandonedStepNeverHappened) {
  auto cache = make({{kSmall}}, 40, 1);
  const Seq seq = *cache->open();
  append_rows(*cache, seq, 10);
  {
    const std::vector<float> ones(30 * 10, 1.0F);
    auto step = begin(*cache, {{seq, 30}});
    step->write(0, {0, 2}, rows_of(ones, 6), rows_of(ones, 10));
    EXPECT_EQ(step->view(0, 0).count, 40);
    EXPECT_EQ(*cache->length(seq), 10);
    EXPECT_EQ(cache->peek(seq, 0)->count, 10);
  }
  EXPECT_EQ(*cache->length(seq), 10);
  EXPECT_EQ(cache->usage().tokens, 10);
  EXPECT_EQ(unpoisoned(*cache->peek(seq, 0), seq.index, 10, 40), "");
  append_rows(*cache, seq, 30);
  EXPECT_EQ(*cache->length(seq), 40);
}

TEST(Contiguous, ACommittedStepIsOver) {
  auto cache = make({{kSmall}}, 40, 1);
  const Seq seq = *cache->open();
  auto step = begin(*cache, {{seq, 3}});
  const std::vector<float> ones(3 * 10, 1.0F);
  step->write(0, {0, 2}, rows_of(ones, 6), rows_of(ones, 10));
  step->commit();
  EXPECT_EQ(step->slices().size(), 1U);
  step->commit();
  EXPECT_EQ(*cache->length(seq), 3);
  append_rows(*cache, seq, 2);
  EXPECT_TRUE(step->slices().empty()) << "they are the next step's";
  auto next = begin(*cache, {{seq, 2}});
  step.reset();
  expect_error(cache->open(), Code::invalid_argument,
               "a step is alive: commit or destroy it before the cache is changed");
  next.reset();
  EXPECT_EQ(*cache->length(seq), 5);
  EXPECT_EQ(unpoisoned(*cache->peek(seq, 0), seq.index, 5, 40), "");
}

TEST(Contiguous, PoisonFillsWhatHoldsNoRow) {
  auto cache = make({{kSmall}}, 40, 2);
  const Seq first = *cache->open();
  EXPECT_EQ(unpoisoned(*cache->peek(first, 0), first.index, 0, 40), "");
  append_rows(*cache, first, 40);
  EXPECT_NE(unpoisoned(*cache->peek(first, 0), first.index, 39, 40), "") << "the check can fail";
  ASSERT_TRUE(cache->truncate(first, 7));
  EXPECT_EQ(unpoisoned(*cache->peek(first, 0), first.index, 7, 40), "");
  ASSERT_TRUE(cache->close(first));
  const Seq second = *cache->open();
  EXPECT_EQ(second.index, first.index);
  EXPECT_EQ(unpoisoned(*cache->peek(second, 0), second.index, 0, 40), "");
}

TEST(Contiguous, OverflowGivesNeedAndCapacityAndChangesNothing) {
  auto cache = make({{kSmall}}, 128, 2);
  const Seq a = *cache->open(), b = *cache->open();
  append_rows(*cache, a, 125);
  const std::vector<Append> appends = {{b, 4}, {a, 5}};
  expect_error(cache->begin(appends), Code::capacity,
               "sequence 0 needs 130 tokens but can hold 128 (125 stored, 5 more asked for)");
  EXPECT_EQ(*cache->length(a), 125);
  EXPECT_EQ(*cache->length(b), 0);
  append_rows(*cache, a, 3);
  expect_error(cache->begin(std::vector<Append>{{a, 1}}), Code::capacity,
               "sequence 0 needs 129 tokens but can hold 128 (128 stored, 1 more asked for)");
}

TEST(Contiguous, RefusesStepsThatCannotBe) {
  auto cache = make({{kSmall}}, 128, 2);
  const Seq a = *cache->open(), b = *cache->open();
  constexpr int kMost = std::numeric_limits<int>::max();
  const auto refuse = [&](std::vector<Append> appends, Code code, const std::string& message) {
    SCOPED_TRACE(message);
    expect_error(cache->begin(appends), code, message);
    EXPECT_EQ(cache->usage().tokens, 0);
  };
  refuse({}, Code::invalid_argument, "a step needs at least one sequence");
  refuse({{a, 1}, {b, 0}}, Code::invalid_argument, "sequence 1 is in the step with 0 tokens: at least 1 is needed");
  refuse({{a, -5}}, Code::invalid_argument, "sequence 0 is in the step with -5 tokens: at least 1 is needed");
  refuse({{a, 1}, {b, 1}, {a, 1}}, Code::invalid_argument, "sequence 0 is in the step twice");
  refuse({{a, kMost}, {b, 1}}, Code::capacity, "a step of 2147483648 rows: at most 2147483647 can be numbered");
  refuse({{a, 1}, {{9, 1}, 1}}, Code::not_found, "sequence 9 does not exist: the cache has 2");
  auto step = begin(*cache, {{a, 1}, {b, 128}});
  EXPECT_EQ(step->slices().size(), 2U);
}

TEST(Contiguous, AStepAliveRefusesEverythingThatChanges) {
  auto cache = make({{kSmall}}, 128, 2);
  const Seq seq = *cache->open();
  append_rows(*cache, seq, 2);
  const std::string alive = "a step is alive: commit or destroy it before the cache is changed";
  auto step = begin(*cache, {{seq, 1}});
  expect_error(cache->open(), Code::invalid_argument, alive);
  expect_error(cache->close(seq), Code::invalid_argument, alive);
  expect_error(cache->truncate(seq, 0), Code::invalid_argument, alive);
  expect_error(cache->begin(std::vector<Append>{{seq, 1}}), Code::invalid_argument, alive);
  EXPECT_EQ(*cache->length(seq), 2);
  EXPECT_EQ(cache->peek(seq, 0)->count, 2);
  EXPECT_EQ(cache->usage().seqs, 1);
  step.reset();
  EXPECT_TRUE(cache->truncate(seq, 0));
}

TEST(Contiguous, AStepWithoutMemoryChangesNothing) {
  auto cache = make({{kSmall}}, 128, 1);
  const Seq seq = *cache->open();
  refuse_small_objects = true;
  const auto step = cache->begin(std::vector<Append>{{seq, 1}});
  refuse_small_objects = false;
  expect_error(step, Code::capacity, "the system refused memory for a step");
  append_rows(*cache, seq, 1);
  EXPECT_EQ(*cache->length(seq), 1);
}

TEST(Contiguous, AStepsHandleIsAllThatIsAllocatedLater) {
  LayerSpec window = kSmall;
  window.span = {20, 3};
  const std::vector<float> ones(40 * 10, 1.0F);
  for (const Layout layout : {Layout::contiguous, Layout::growing, Layout::paged}) {
    CacheOptions options;
    options.layout = layout;
    options.max_len = 128;
    options.max_seqs = 3;
    auto cache = *make_cache({{kSmall, window}}, options);
    const Seq seq = *cache->open();
    std::vector<Append> appends{{seq, 40}};
    std::vector<View> views(2);
    const int before = allocations;
    for (int i = 0; i < 3; ++i) {
      if (i == 1) appends[0].seq = *cache->fork(seq, 40);
      if (i == 2) appends[0].seq = *cache->restore(40, views);
      auto step = *cache->begin(appends);
      for (int l = 0; l < 2; ++l) step->write(l, {0, 2}, rows_of(ones, 6), rows_of(ones, 10));
      step->commit();
      for (int l = 0; l < 2; ++l) views[static_cast<std::size_t>(l)] = *cache->peek(seq, l);
    }
    EXPECT_TRUE(cache->truncate(seq, 39));
    EXPECT_TRUE(cache->close(seq));
    EXPECT_EQ(cache->usage().seqs, 2);
    EXPECT_EQ(allocations - before, 3) << name_of(layout);
  }
}

TEST(Contiguous, OpensNoMoreThanItHasRoomFor) {
  auto cache = make({{kSmall}}, 8, 2);
  const Seq a = *cache->open();
  const Seq b = *cache->open();
  EXPECT_NE(a.index, b.index);
  expect_error(cache->open(), Code::capacity, "all 2 sequences of the cache are open");
  EXPECT_EQ(cache->usage().seqs, 2);
  ASSERT_TRUE(cache->close(a));
  EXPECT_EQ(cache->open()->index, a.index);
}

TEST(Contiguous, HandlesThatAreNotOpenAreErrors) {
  auto cache = make({{kSmall}}, 8, 2);
  const Seq old = *cache->open();
  append_rows(*cache, old, 3);
  ASSERT_TRUE(cache->close(old));
  EXPECT_EQ(cache->usage().tokens, 0);
  const Seq now = *cache->open();
  ASSERT_EQ(now.index, old.index);
  EXPECT_NE(now.generation, old.generation);
  const auto refuse = [&](Seq seq, const std::string& message) {
    expect_error(cache->close(seq), Code::not_found, message);
    expect_error(cache->length(seq), Code::not_found, message);
    expect_error(cache->truncate(seq, 0), Code::not_found, message);
    expect_error(cache->peek(seq, 0), Code::not_found, message);
    expect_error(cache->begin(std::vector<Append>{{seq, 1}}), Code::not_found, message);
  };
  refuse(old, "sequence 0 of generation 1 is not open");
  refuse({1, 1}, "sequence 1 of generation 1 is not open");
  refuse({}, "sequence 0 of generation 0 is not open");
  refuse({2, 1}, "sequence 2 does not exist: the cache has 2");
  refuse({~0U, ~0U}, "sequence 4294967295 does not exist: the cache has 2");
  EXPECT_EQ(*cache->length(now), 0);
}

TEST(Contiguous, GenerationsWrapPastZero) {
  const CacheSpec spec{{kSmall}};
  CacheOptions options;
  options.max_len = 8;
  auto cache = kv::make_cache(spec, options, base::Buffer::allocate, ~0U);
  ASSERT_TRUE(cache);
  const Seq last = *(*cache)->open();
  EXPECT_EQ(last.generation, ~0U);
  ASSERT_TRUE((*cache)->close(last));
  const Seq next = *(*cache)->open();
  EXPECT_EQ(next.generation, 1U);
  EXPECT_FALSE((*cache)->length(last));
  EXPECT_FALSE((*cache)->length(Seq{}));
}

TEST(Contiguous, TruncateRefusesWhatIsNotThere) {
  auto cache = make({{kSmall}}, 8, 1);
  const Seq seq = *cache->open();
  append_rows(*cache, seq, 5);
  expect_error(cache->truncate(seq, 6), Code::invalid_argument, "sequence 0 cannot be cut to 6 tokens: it holds 5");
  expect_error(cache->truncate(seq, -1), Code::invalid_argument, "sequence 0 cannot be cut to -1 tokens: it holds 5");
  EXPECT_TRUE(cache->truncate(seq, 5));
  EXPECT_EQ(*cache->length(seq), 5);
}

TEST(Contiguous, ReadingRefusesWhatIsNotThere) {
  auto cache = make({{kSmall}}, 8, 1);
  const Seq seq = *cache->open();
  append_rows(*cache, seq, 5);
  expect_error(cache->peek(seq, 1), Code::invalid_argument, "layer 1 is not among the 1 of the cache");
  expect_error(cache->peek(seq, -1), Code::invalid_argument, "layer -1 is not among the 1 of the cache");
  const View view = *cache->peek(seq, 0);
  std::vector<double> key(3), value(5);
  const std::string beyond = "position 5 is not among the 5 stored from position 0";
  expect_error(read_key(view, 0, 5, key), Code::invalid_argument, beyond);
  expect_error(read_value(view, 0, 5, value), Code::invalid_argument, beyond);
  EXPECT_FALSE(read_key(view, 0, -1, key));
  expect_error(read_key(view, 2, 0, key), Code::invalid_argument, "head 2 is not among the 2 of the layer");
  expect_error(read_value(view, -1, 0, value), Code::invalid_argument, "head -1 is not among the 2 of the layer");
  expect_error(read_key(view, 0, 0, value), Code::invalid_argument, "a row has 3 values, not 5");
  expect_error(read_value(view, 0, 0, key), Code::invalid_argument, "a row has 5 values, not 3");
  EXPECT_FALSE(read_key(View{}, 0, 0, key));
}

// For the thread sanitizer above all: disjoint heads and layers share no byte.
TEST(Contiguous, ThreadsWriteDisjointHeads) {
  const LayerSpec layer{8, 5, 3, Codec::f32, Codec::f64, {}};
  const CacheSpec spec{{layer, layer}};
  auto cache = make(spec, 100, 2);
  const Seq a = *cache->open(), b = *cache->open();
  Random random(5);
  std::vector<Stored> stored(2);
  for (int round = 0; round < 3; ++round) {
    const Activations k(random, DType::f64, 40, 8, 5), v(random, DType::f32, 40, 8, 3);
    auto step = begin(*cache, {{a, 33}, {b, 7}});
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int l = 0; l < 2; ++l) step->write(l, {t * 2, t * 2 + 2}, k.rows(), v.rows());
      });
    }
    for (std::thread& thread : threads) thread.join();
    step->commit();
    for (int row = 0; row < 40; ++row) {
      Stored& seq = stored[row < 33 ? 0 : 1];
      seq.k.push_back(k.stored(row, layer.k));
      seq.v.push_back(v.stored(row, layer.v));
    }
  }
  for (int l = 0; l < 2; ++l) {
    EXPECT_EQ(difference(*cache->peek(a, l), layer, stored[0], 99), "");
    EXPECT_EQ(difference(*cache->peek(b, l), layer, stored[1], 21), "");
  }
}

}  // namespace
}  // namespace stet::kv_test
