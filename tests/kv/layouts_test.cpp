// What the layouts promise beyond the common contract: who shares what, what is evicted, what runs out, what is copied.
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <new>

#include "kv/make_cache.hpp"
#include "kv/rows.hpp"

namespace stet::kv_test {
namespace {

const LayerSpec kPlain{1, 2, 3, Codec::f32, Codec::f32, {}};

LayerSpec windowed(Pos window, Pos sinks = 0) {
  LayerSpec layer = kPlain;
  layer.span = {window, sinks};
  return layer;
}

CacheOptions options_of(Layout layout, Pos max_len, int max_seqs) {
  CacheOptions options;
  options.layout = layout;
  options.max_len = max_len;
  options.max_seqs = max_seqs;
  options.poison = std::numeric_limits<double>::quiet_NaN();
  return options;
}

CacheOptions pages_of(Pos tokens, Pos max_len, int max_seqs, Pos pool_tokens = 0) {
  CacheOptions options = options_of(Layout::paged, max_len, max_seqs);
  options.page_tokens = tokens;
  options.pool_tokens = pool_tokens;
  return options;
}

std::unique_ptr<Cache> make(const CacheSpec& spec, const CacheOptions& options) {
  auto cache = make_cache(spec, options);
  EXPECT_TRUE(cache) << cache.error().message;
  return std::move(*cache);
}

// Row `pos` of every layer is tag + pos.
Result<void> append(Cache& cache, std::vector<Append> appends, float tag = 0, bool commit = true) {
  auto step = cache.begin(appends);
  if (!step) return pass(step);
  std::vector<float> k, v;
  for (const Slice& slice : (*step)->slices()) {
    for (int t = 0; t < slice.tokens; ++t) {
      k.insert(k.end(), 2, tag + static_cast<float>(slice.first + t));
      v.insert(v.end(), 3, tag + static_cast<float>(slice.first + t));
    }
  }
  for (int layer = 0; layer < static_cast<int>(cache.spec().layers.size()); ++layer) {
    (*step)->write(layer, {0, 1}, {DType::f32, reinterpret_cast<const std::byte*>(k.data()), 8},
                   {DType::f32, reinterpret_cast<const std::byte*>(v.data()), 12});
  }
  if (commit) (*step)->commit();
  return {};
}

double row_at(Cache& cache, Seq seq, Pos pos, int layer = 0) {
  std::vector<double> key(2);
  const auto ok = read_key(*cache.peek(seq, layer), 0, pos, key);
  return ok ? key[0] : -1;
}

template <class T>
void expect_error(const Result<T>& result, Code code, const std::string& message) {
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, code);
  EXPECT_EQ(result.error().message, message);
}

TEST(Windows, EvictWholeCellsThatNoLaterQuerySees) {
  auto options = options_of(Layout::contiguous, 200, 1);
  options.max_step_tokens = 4;
  auto cache = make({{windowed(10, 3)}}, options);
  const Seq seq = *cache->open();
  for (int i = 0; i < 25; ++i) ASSERT_TRUE(append(*cache, {{seq, 1}}));
  // Query 25 sees 16 to 24, and the sinks 0 to 2: nothing lies between their cells.
  EXPECT_EQ(cache->peek(seq, 0)->kept, 0);
  EXPECT_EQ(*cache->oldest_restorable(seq), 0);
  // Query 42 sees 33 to 41; 32 is kept too, for the last token to be computed again.
  for (int i = 25; i < 42; ++i) ASSERT_TRUE(append(*cache, {{seq, 1}}));
  const View view = *cache->peek(seq, 0);
  EXPECT_EQ(view.kept, 16);
  EXPECT_EQ(view.first, 32);
  EXPECT_EQ(view.count, 10);
  EXPECT_EQ(view.cells.size(), 2U);
  EXPECT_EQ(*cache->oldest_restorable(seq), 41);
  EXPECT_EQ(row_at(*cache, seq, 2), 2);
  EXPECT_EQ(row_at(*cache, seq, 31), -1);
  EXPECT_EQ(row_at(*cache, seq, 41), 41);
  const std::string gone = "position 31 of layer 0 was evicted, 41 is the least";
  expect_error(cache->truncate(seq, 40), Code::invalid_argument, "sequence 0 cannot be cut to 40 tokens: " + gone);
  expect_error(cache->fork(seq, 40), Code::invalid_argument, "sequence 0 cannot be forked at 40 tokens: " + gone);
  EXPECT_TRUE(cache->truncate(seq, 41)) << "one token can always be taken back";
  EXPECT_TRUE(cache->truncate(seq, 0)) << "an empty sequence lacks nothing";
  EXPECT_EQ(*cache->oldest_restorable(seq), 0);
  EXPECT_TRUE(append(*cache, {{seq, 4}}));
}

TEST(Windows, BoundWhatIsReserved) {
  // Window 10 and a step of 4: 14 tokens touch 2 cells at most, and the sinks are a third.
  auto options = options_of(Layout::contiguous, 1000000, 1);
  options.max_step_tokens = 4;
  const CacheSpec spec{{windowed(10, 3)}};
  const std::size_t cell = kv::cell_layout(spec.layers[0]).bytes;
  EXPECT_EQ(plan_cache(spec, options)->bytes_per_sequence, 3 * cell);
  options.layout = Layout::paged;
  EXPECT_EQ(plan_cache(spec, options)->bytes_per_sequence, 3 * cell);
  options.page_tokens = 64;
  EXPECT_EQ(plan_cache(spec, options)->bytes_per_sequence, 3 * 4 * cell);
  options.layout = Layout::growing;
  EXPECT_EQ(plan_cache(spec, options)->bytes_per_sequence, 2 * 62500 * cell);
}

TEST(Windows, GivePagesBackAtCommit) {
  auto cache = make({{windowed(20)}}, pages_of(32, 400, 1));
  const Seq seq = *cache->open();
  for (int i = 0; i < 400; ++i) {
    ASSERT_TRUE(append(*cache, {{seq, 1}}));
    ASSERT_LE(cache->pages().size(), 2U);
  }
  EXPECT_EQ(cache->pages().front().first, 352);
  EXPECT_EQ(cache->pages().front().room, 32);
}

TEST(Windows, AStepTooLongIsRefused) {
  auto options = options_of(Layout::contiguous, 100, 1);
  options.max_step_tokens = 7;
  auto cache = make({{windowed(10)}}, options);
  const Seq seq = *cache->open();
  expect_error(append(*cache, {{seq, 8}}), Code::capacity,
               "sequence 0 needs a step of 8 tokens but the cache's come to 7");
}

TEST(Growing, CopiesAllThatThereIsAtEachStep) {
  auto cache = make({{kPlain, kPlain}}, options_of(Layout::growing, 100, 2));
  const Seq seq = *cache->open();
  std::uint64_t expected = 0;
  for (std::uint64_t n = 0; n < 100; ++n) {
    expected += (n + 15) / 16 * 16 * 2 * (2 + 3) * 4;  // whole cells, two layers, five floats a token
    ASSERT_TRUE(append(*cache, {{seq, 1}}));
    ASSERT_EQ(cache->usage().copied, expected);
  }
  for (Pos pos = 0; pos < 100; ++pos) EXPECT_EQ(row_at(*cache, seq, pos, 1), pos);
}

TEST(Paged, ForksShareAndCopyOnWrite) {
  auto cache = make({{kPlain}}, pages_of(16, 64, 3));
  const Seq a = *cache->open();
  ASSERT_TRUE(append(*cache, {{a, 40}}));
  const Seq b = *cache->fork(a, 36);
  EXPECT_EQ(cache->usage().copied, 0U);
  EXPECT_EQ(cache->usage().live, cache->usage().shared);
  ASSERT_EQ(cache->pages().size(), 3U);
  for (const PageInfo& page : cache->pages()) EXPECT_EQ(page.owners, 2);
  EXPECT_EQ(cache->pages()[2].filled, 8);

  // The shorter one copies its 4 rows; after that each has its last page alone.
  ASSERT_TRUE(append(*cache, {{b, 1}}, 1000));
  EXPECT_EQ(cache->usage().copied, 4U * 20);
  ASSERT_TRUE(append(*cache, {{a, 1}}));
  EXPECT_EQ(cache->usage().copied, 4U * 20);
  EXPECT_EQ(row_at(*cache, a, 36), 36);
  EXPECT_EQ(row_at(*cache, b, 35), 35);
  EXPECT_EQ(row_at(*cache, b, 36), 1036);
  EXPECT_EQ(cache->pages().size(), 4U);
  ASSERT_TRUE(cache->close(a));
  EXPECT_EQ(cache->usage().shared, 0U);
  ASSERT_TRUE(cache->truncate(b, 32));
  EXPECT_EQ(cache->pages().size(), 2U);
}

TEST(Paged, TheLongestOwnerGoesOnInPlace) {
  auto cache = make({{kPlain}}, pages_of(16, 16, 3));
  const Seq a = *cache->open();
  ASSERT_TRUE(append(*cache, {{a, 8}}));
  const Seq b = *cache->fork(a, 8), c = *cache->fork(a, 5);
  ASSERT_TRUE(append(*cache, {{c, 1}, {b, 1}, {a, 1}}, 0, false)) << "three pages are enough for three";
  EXPECT_EQ(cache->pages().size(), 1U) << "an abandoned step gives its copies back";
  EXPECT_EQ(cache->pages()[0].owners, 3);
  ASSERT_TRUE(append(*cache, {{c, 8}, {b, 8}, {a, 8}}, 100));
  EXPECT_EQ(cache->pages().size(), 3U);
  for (const Seq seq : {a, b, c}) EXPECT_EQ(row_at(*cache, seq, 4), 4);
  EXPECT_EQ(row_at(*cache, c, 5), 105);
  EXPECT_EQ(row_at(*cache, b, 7), 7);
  EXPECT_EQ(row_at(*cache, a, 15), 115);
}

// The second time a prompt comes, all but its last token are there: in a pool for one it needs no page of its own.
TEST(Paged, APoolForOneServesAFullHit) {
  auto cache = make({{kPlain}}, pages_of(32, 40, 2, 40));
  const Seq a = *cache->open();
  ASSERT_TRUE(append(*cache, {{a, 40}}));
  const Seq b = *cache->fork(a, 39);
  expect_error(append(*cache, {{b, 1}}), Code::exhausted, "the step needs 1 pages of layer 0 but 0 of 2 are free");
  EXPECT_EQ(row_at(*cache, a, 39), 39);
  ASSERT_TRUE(cache->close(a));
  ASSERT_TRUE(append(*cache, {{b, 1}}, 500));
  EXPECT_EQ(row_at(*cache, b, 38), 38);
  EXPECT_EQ(row_at(*cache, b, 39), 539);
  EXPECT_EQ(cache->usage().copied, 0U);
}

TEST(Paged, SaysWhatCanNeverFitAndWhatDoesNotNow) {
  auto cache = make({{kPlain}}, pages_of(16, 100, 3, 64));
  const Seq a = *cache->open(), b = *cache->open(), c = *cache->open();
  expect_error(append(*cache, {{a, 65}}), Code::capacity, "sequence 0 needs 5 pages of layer 0 but the pool has 4");
  ASSERT_TRUE(append(*cache, {{a, 30}}));
  expect_error(append(*cache, {{b, 16}, {c, 17}}), Code::exhausted,
               "the step needs 3 pages of layer 0 but 2 of 4 are free");
  EXPECT_EQ(*cache->length(b), 0);
  ASSERT_TRUE(append(*cache, {{b, 16}}));
  expect_error(append(*cache, {{c, 17}}), Code::exhausted, "the step needs 2 pages of layer 0 but 1 of 4 are free");
  ASSERT_TRUE(append(*cache, {{c, 16}}));
  expect_error(append(*cache, {{c, 1}}), Code::exhausted, "the step needs 1 pages of layer 0 but 0 of 4 are free");
  const std::vector<View> views{*cache->peek(a, 0)};
  ASSERT_TRUE(cache->close(b));
  expect_error(cache->restore(30, views), Code::exhausted,
               "a sequence of 30 tokens needs 2 pages of layer 0 but 1 of 4 are free");
  ASSERT_TRUE(cache->close(c));
  EXPECT_TRUE(cache->restore(30, views));
}

TEST(Paged, ShuffledPagesComeInAnotherOrder) {
  const auto order = [](std::optional<std::uint64_t> seed) {
    auto options = pages_of(16, 16 * 20, 1);
    options.shuffle = seed;
    auto cache = make({{kPlain}}, options);
    const Seq seq = *cache->open();
    EXPECT_TRUE(append(*cache, {{seq, 16 * 20}}));
    const View view = *cache->peek(seq, 0);
    return std::vector<std::uint32_t>(view.cells.begin(), view.cells.end());
  };
  std::vector<std::uint32_t> sorted(20);
  for (std::uint32_t i = 0; i < 20; ++i) sorted[i] = i;
  EXPECT_EQ(order({}), sorted);
  EXPECT_NE(order(1), sorted);
  EXPECT_NE(order(1), order(2));
  EXPECT_EQ(order(1), order(1));
  auto shuffled = order(1);
  std::sort(shuffled.begin(), shuffled.end());
  EXPECT_EQ(shuffled, sorted);
}

TEST(Paged, LayersAlikeShareAPool) {
  auto cache = make({{kPlain, windowed(8), kPlain}}, pages_of(16, 32, 1));
  const Seq seq = *cache->open();
  ASSERT_TRUE(append(*cache, {{seq, 20}}));
  const auto pages = cache->pages();
  ASSERT_EQ(pages.size(), 4U);
  EXPECT_EQ(pages[0].layer, 0);
  EXPECT_EQ(pages[0].layers, 2);
  EXPECT_EQ(pages[3].group, 1);
  EXPECT_EQ(pages[3].layer, 1);
  EXPECT_EQ(pages[3].filled, 4);
  EXPECT_NE(cache->peek(seq, 0)->base, cache->peek(seq, 2)->base);
  EXPECT_EQ(cache->peek(seq, 0)->cells.data(), cache->peek(seq, 2)->cells.data());
}

TEST(Restore, TakesWhatTheNextQuerySees) {
  auto full = make({{windowed(8, 2)}}, options_of(Layout::growing, 100, 1));
  const Seq seq = *full->open();
  ASSERT_TRUE(append(*full, {{seq, 60}}));
  auto cache = make({{windowed(8, 2)}}, pages_of(64, 100, 2));
  const std::vector<View> views{*full->peek(seq, 0)};
  const Seq restored = *cache->restore(60, views);
  const View view = *cache->peek(restored, 0);
  EXPECT_EQ(view.kept, 16);
  EXPECT_EQ(view.first, 48);
  EXPECT_EQ(row_at(*cache, restored, 1), 1);
  EXPECT_EQ(row_at(*cache, restored, 53), 53);
  ASSERT_TRUE(append(*cache, {{restored, 40}}));
  EXPECT_EQ(row_at(*cache, restored, 99), 99);
  EXPECT_EQ(*cache->length(*cache->restore(0, views)), 0);
}

TEST(Restore, AViewMayBeginInTheMiddleOfACell) {
  auto full = make({{windowed(8)}}, options_of(Layout::growing, 100, 1));
  const Seq seq = *full->open();
  ASSERT_TRUE(append(*full, {{seq, 60}}));
  View view = *full->peek(seq, 0);
  view.first = 53;  // query 60 sees 53 to 59
  view.count = 7;
  view.cells = view.cells.subspan(3);
  auto cache = make({{windowed(8)}}, pages_of(32, 100, 3));
  const Seq restored = *cache->restore(60, std::vector<View>{view});
  EXPECT_EQ(cache->peek(restored, 0)->first, 53);
  EXPECT_EQ(*cache->oldest_restorable(restored), 60);
  for (const Pos pos : {53, 59}) EXPECT_EQ(row_at(*cache, restored, pos), pos);
  EXPECT_EQ(row_at(*cache, restored, 52), -1);
  const Seq forked = *cache->fork(restored, 60);
  ASSERT_TRUE(append(*cache, {{restored, 10}, {forked, 1}}));
  for (const Pos pos : {53, 59, 60}) EXPECT_EQ(row_at(*cache, forked, pos), pos);
  view.first = 54;
  view.count = 6;
  expect_error(cache->restore(60, std::vector<View>{view}), Code::invalid_argument,
               "layer 0: the view lacks position 53, which 60 tokens need");
}

TEST(Restore, SaysWhatIsWrongWithAView) {
  auto cache = make({{windowed(8, 2), kPlain}}, pages_of(16, 100, 2));
  const Seq seq = *cache->open();
  ASSERT_TRUE(append(*cache, {{seq, 60}}));
  const auto refuse = [&](auto change, Pos length, Code code, const std::string& message) {
    std::vector<View> views{*cache->peek(seq, 0), *cache->peek(seq, 1)};
    change(views);
    expect_error(cache->restore(length, views), code, message);
    EXPECT_EQ(cache->usage().seqs, 1);
  };
  const auto nothing = [](auto&) {};
  constexpr Code kInvalid = Code::invalid_argument;
  refuse(nothing, -1, kInvalid, "a sequence of -1 tokens cannot be");
  refuse(nothing, 101, Code::capacity, "a sequence of 101 tokens: the cache's can hold 100");
  refuse(nothing, 61, kInvalid, "layer 0: the view lacks position 60, which 61 tokens need");
  refuse(nothing, 50, kInvalid, "layer 0: the view lacks position 43, which 50 tokens need");
  refuse([](auto& v) { v.pop_back(); }, 60, kInvalid, "1 layers are given to a cache of 2");
  refuse([](auto& v) { v[1].layout = nullptr; }, 60, kInvalid, "layer 1: the view contradicts itself");
  refuse([](auto& v) { v[0].kept = 48; }, 60, kInvalid, "layer 0: the view contradicts itself");
  refuse([](auto& v) { v[0].kept = 0; }, 60, kInvalid, "layer 0: the view lacks position 0, which 60 tokens need");
  refuse([](auto& v) { v[1].cells = v[1].cells.first(3); }, 60, kInvalid,
         "layer 1: the view lacks the cell of position 59");
  const CellLayout other = kv::cell_layout({1, 2, 3, Codec::f32, Codec::f64, {}});
  refuse([&](auto& v) { v[1].layout = &other; }, 60, kInvalid,
         "layer 1: the view's codecs or shapes are not the cache's");
}

// What pages cost that are not filled: the ends of 64 sequences.
TEST(Paged, WastesUnder4PercentAtAMeanOf300TokensAndPagesOf16) {
  CacheOptions options;
  options.layout = Layout::paged;
  options.max_len = 600;
  options.max_seqs = 64;
  const CacheSpec spec{{4, LayerSpec{2, 32, 32, Codec::f32, Codec::f32, {}}}};
  auto cache = *make_cache(spec, options);
  Random random(1);
  Pos tokens = 0;
  for (int i = 0; i < 64; ++i) {
    const Append append{*cache->open(), pick(random, 1, 599)};
    auto step = cache->begin({&append, 1});
    ASSERT_TRUE(step);
    (*step)->commit();
    tokens += append.tokens;
  }
  const CacheUsage usage = cache->usage();
  EXPECT_NEAR(static_cast<double>(tokens) / 64, 300, 40);
  EXPECT_EQ(usage.used, static_cast<std::size_t>(tokens) * 4 * 2 * 64 * 4);
  EXPECT_LT(static_cast<double>(usage.live - usage.used), 0.04 * static_cast<double>(usage.live));
  EXPECT_LE(usage.live - usage.used, 64U * 15 * 4 * 2 * 64 * 4) << "more than a page a sequence";
}

}  // namespace
}  // namespace stet::kv_test
