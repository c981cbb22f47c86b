// The prefix index, one thing at a time.
#include <gtest/gtest.h>

#include <optional>

#include "kv/index_snapshot.hpp"
#include "kv/prefix_support.hpp"

namespace stet::kv_test {
namespace {

using kv::Miss;
using kv::PrefixIndex;
using kv::PrefixOptions;

class Small : public testing::Test {
 protected:
  void start(const PrefixOptions& options = {}, int seqs = 4, Layout layout = Layout::paged) {
    index.reset();
    cache = small_cache(layout, full_spec(), seqs);
    index = std::make_unique<PrefixIndex>(*cache, options);
  }
  void park(const Tokens& tokens, const char* salt = "") {
    ASSERT_TRUE(index->insert(fill(*cache, tokens), tokens, salt));
  }

  // A lookup whose sequence is closed again.
  kv::PrefixHit look(const Tokens& ids, const char* salt = "") {
    const auto hit = index->lookup(ids, salt);
    EXPECT_TRUE(hit) << hit.error().message;
    EXPECT_EQ(hit->seq.has_value(), hit->tokens > 0);
    if (hit->seq) {
      EXPECT_EQ(wrong_rows(*cache, *hit->seq, Tokens(ids.begin(), ids.begin() + hit->tokens)), "");
      EXPECT_TRUE(cache->close(*hit->seq));
    }
    return *hit;
  }
  void expect(const Tokens& ids, Pos tokens, Miss why, const char* salt = "") {
    const kv::PrefixHit hit = look(ids, salt);
    EXPECT_EQ(hit.tokens, tokens);
    EXPECT_EQ(hit.why, why) << kv::name_of(hit.why);
  }

  std::unique_ptr<Cache> cache;
  std::unique_ptr<PrefixIndex> index;
};

TEST_F(Small, AFullHitIsAllButTheLastToken) {
  start();
  park({1, 2, 3, 4});
  expect({1, 2, 3, 4}, 3, Miss::none);
  expect({1, 2, 3, 4, 5}, 4, Miss::none);
  expect({1, 2, 3, 4, 5, 6}, 4, Miss::never_seen);
  expect({1, 2, 9, 4}, 2, Miss::never_seen);
  expect({1, 2}, 1, Miss::none);
  expect({9, 1}, 0, Miss::never_seen);
  expect({1}, 0, Miss::none);
  expect({}, 0, Miss::none);
  const kv::PrefixStats& stats = index->stats();
  EXPECT_EQ(stats.lookups, 8U);
  EXPECT_EQ(stats.hits, 5U);
  EXPECT_EQ(stats.full_hits, 3U);
  EXPECT_EQ(stats.tokens_asked, 4U + 5 + 6 + 4 + 2 + 2 + 1 + 0);
  EXPECT_EQ(stats.tokens_hit, 3U + 4 + 4 + 2 + 1);
  EXPECT_EQ(stats.misses[static_cast<std::size_t>(Miss::never_seen)], 3U);
}

TEST_F(Small, SaltsShareNothing) {
  start();
  park({1, 2, 3}, "a");
  expect({1, 2, 3, 4}, 3, Miss::none, "a");
  const kv::PrefixHit hit = look({1, 2, 9}, "b");
  EXPECT_EQ(hit.tokens, 0);
  EXPECT_EQ(hit.possible, 2);
  EXPECT_EQ(hit.why, Miss::different_salt);
  expect({1, 2, 3, 4}, 0, Miss::different_salt);
}

TEST_F(Small, WhatIsRedundantIsNotKept) {
  start();
  park({1, 2, 3});
  park({1, 2});
  EXPECT_EQ(index->size(), 1U);
  EXPECT_EQ(index->stats().duplicates, 1U);
  park({1, 2, 3, 4});
  EXPECT_EQ(index->size(), 1U);
  EXPECT_EQ(index->stats().replaced, 1U);
  EXPECT_EQ(cache->usage().seqs, 1);
  park({1, 2, 4});
  EXPECT_EQ(index->size(), 2U);
  ASSERT_TRUE(index->insert(cache->open().value(), {}));  // nothing to park
  EXPECT_EQ(cache->usage().seqs, 2);
}

TEST_F(Small, EvictsTheLeastRecentlyUsedThatIsNotPinned) {
  start();
  park({1, 1});
  park({2, 2});
  park({3, 3});
  expect({1, 1, 1}, 2, Miss::none);  // the most recent now
  const auto pin = index->pin(Tokens{2});
  ASSERT_TRUE(pin);
  EXPECT_FALSE(index->pin(Tokens{7}));
  EXPECT_FALSE(index->pin(Tokens{2}, "other"));
  EXPECT_FALSE(index->pin({}));
  EXPECT_TRUE(index->evict_one().value());
  expect({3, 3, 3}, 0, Miss::evicted);
  expect({3, 4, 3}, 0, Miss::evicted);
  EXPECT_TRUE(index->evict_one().value());
  expect({1, 1, 1}, 0, Miss::evicted);
  EXPECT_FALSE(index->evict_one().value());
  expect({2, 2, 2}, 2, Miss::none);
  EXPECT_TRUE(index->parked().front().pinned);
  ASSERT_TRUE(index->unpin(*pin));
  EXPECT_FALSE(index->unpin(*pin));
  EXPECT_TRUE(index->evict_one().value());
  EXPECT_EQ(index->size(), 0U);
  EXPECT_EQ(cache->usage().seqs, 0);
}

TEST_F(Small, APinPassesToTheSequenceThatReplacesItsOwn) {
  start();
  park({1, 2});
  const auto a = index->pin(Tokens{1}), b = index->pin(Tokens{1, 2});
  ASSERT_TRUE(a && b);
  park({1, 2, 3});
  EXPECT_EQ(index->size(), 1U);
  ASSERT_TRUE(index->unpin(*a));
  EXPECT_FALSE(index->evict_one().value());
  ASSERT_TRUE(index->unpin(*b));
  EXPECT_TRUE(index->evict_one().value());
}

TEST_F(Small, KeepsToItsBudget) {
  start();
  park({1, 1});
  const std::size_t one = index->bytes();
  EXPECT_EQ(one, cache->usage().live);
  PrefixOptions options;
  options.budget = 2 * one;
  start(options);
  park({1, 1});
  park({2, 2});
  EXPECT_EQ(index->bytes(), 2 * one);
  const auto pin = index->pin(Tokens{1});
  park({3, 3});
  EXPECT_EQ(index->bytes(), 2 * one);
  expect({1, 1, 1}, 2, Miss::none);
  expect({2, 2, 2}, 0, Miss::evicted);
  options.budget = one - 1;
  start(options);
  park({1, 1});
  EXPECT_EQ(index->size(), 0U);
}

TEST_F(Small, CountsSharedPagesOnce) {
  start();
  Tokens a(40, 1), b(40, 1);
  park(a);
  const std::size_t one = index->bytes();
  const auto hit = index->lookup(b);
  ASSERT_TRUE(hit && hit->seq);
  b.resize(39);
  ASSERT_TRUE(append(*cache, *hit->seq, b, Tokens{2, 2}));
  ASSERT_TRUE(index->insert(*hit->seq, b));
  EXPECT_EQ(index->size(), 2U);
  EXPECT_EQ(index->bytes(), cache->usage().live);
  EXPECT_EQ(index->bytes(), one + one / 2);  // the first of two pages is shared
  EXPECT_TRUE(index->evict_one().value());
  EXPECT_EQ(index->bytes(), one);
  EXPECT_EQ(index->bytes(), cache->usage().live);
}

TEST_F(Small, MakesRoomForAHit) {
  for (const Layout layout : {Layout::contiguous, Layout::growing, Layout::paged}) {
    start({}, 2, layout);
    park({1, 1, 1});
    park({2, 2, 2});
    // No sequence is free: the other one goes.
    auto hit = index->lookup(Tokens{1, 1, 1, 1});
    ASSERT_TRUE(hit && hit->seq);
    EXPECT_EQ(hit->tokens, 3);
    EXPECT_EQ(index->size(), 1U);
    // Nothing is left to evict: a pinned match stays, and is no use; else it is handed over.
    const auto pin = index->pin(Tokens{1});
    auto none = index->lookup(Tokens{1, 1, 1});
    ASSERT_TRUE(none);
    EXPECT_EQ(none->tokens, 0);
    EXPECT_EQ(none->possible, 2);
    EXPECT_EQ(none->why, Miss::no_room);
    ASSERT_TRUE(index->unpin(*pin));
    auto taken = index->lookup(Tokens{1, 1, 1});
    ASSERT_TRUE(taken && taken->seq);
    EXPECT_EQ(taken->tokens, 2);
    EXPECT_EQ(wrong_rows(*cache, *taken->seq, {1, 1}), "");
    EXPECT_EQ(index->size(), 0U);
    EXPECT_EQ(index->bytes(), 0U);
    EXPECT_EQ(index->stats().handed_over, 1U);
    ASSERT_TRUE(cache->close(*hit->seq));
    ASSERT_TRUE(cache->close(*taken->seq));
    EXPECT_EQ(cache->usage().live, 0U);
  }
}

TEST_F(Small, GhostsAreBounded) {
  PrefixOptions options;
  options.ghost_tokens = 5;
  start(options);
  for (const Tokens& tokens : {Tokens{1, 1, 1}, Tokens{2, 2}, Tokens{3, 3, 3}, Tokens(9, 4)}) {
    park(tokens);
    EXPECT_TRUE(index->evict_one().value());
    expect({tokens[0], tokens[0], tokens[0]}, 0, Miss::evicted);
    expect({1, 1, 1}, 0, tokens[0] <= 2 ? Miss::evicted : Miss::never_seen);
  }
  EXPECT_EQ(look(Tokens(20, 4)).possible, 5);
}

TEST_F(Small, BadSequencesStayTheCallers) {
  start();
  const Seq seq = fill(*cache, {1, 2, 3});
  EXPECT_EQ(index->insert(seq, Tokens{1, 2}).error().code, Code::invalid_argument);
  EXPECT_EQ(index->insert({9, 9}, Tokens{1, 2}).error().code, Code::not_found);
  EXPECT_EQ(index->size(), 0U);
  EXPECT_TRUE(cache->close(seq));
}

TEST_F(Small, AFileOfAnotherModelIsWhyNothingIsHit) {
  start();
  const Folder folder;
  park({1, 2, 3, 4}, "a");
  park({5, 6});
  expect({1, 2, 3, 4}, 3, Miss::none, "a");
  kv::Identity mine, other;
  mine.config = "rope_theta=1\n";
  other.config = "rope_theta=2\n";
  ASSERT_TRUE(kv::save_index(folder / "file", mine, *cache, *index));
  const auto snapshot = kv::Snapshot::open(folder / "file");
  ASSERT_TRUE(snapshot);

  start();
  const auto refused = kv::restore_index(*snapshot, other, *cache, *index);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("rope_theta is 1 in the file, 2 in the model"), std::string::npos);
  EXPECT_EQ(cache->usage().seqs, 0);
  expect({1, 2, 3, 4}, 0, Miss::different_identity, "a");
  expect({1, 2, 3, 4}, 0, Miss::never_seen);

  // With the right one all is as it was, and so is the order of eviction.
  ASSERT_EQ(kv::restore_index(*snapshot, mine, *cache, *index).value(), 2U);
  expect({1, 2, 3, 4}, 3, Miss::none, "a");
  EXPECT_TRUE(index->evict_one().value());
  expect({5, 6, 7}, 0, Miss::evicted);

  // Room for one only: the most recently used.
  start({}, 1);
  ASSERT_EQ(kv::restore_index(*snapshot, mine, *cache, *index).value(), 1U);
  expect({1, 2, 3, 4}, 3, Miss::none, "a");
}

TEST(PrefixIndexWindows, ASequenceWhoseRowsAreGoneGivesNothingAndSaysSo) {
  auto cache = small_cache(Layout::paged, window_spec(), 6);
  PrefixIndex index(*cache);
  const Tokens tokens(60, 1);
  ASSERT_TRUE(index.insert(fill(*cache, tokens), tokens));
  const Pos oldest = index.parked().front().oldest;
  ASSERT_GT(oldest, 40);
  auto hit = index.lookup(Tokens(30, 1));
  ASSERT_TRUE(hit);
  EXPECT_EQ(hit->tokens, 0);
  EXPECT_EQ(hit->possible, 29);
  EXPECT_EQ(hit->why, Miss::evicted_rows);
  // A shorter one is not redundant now: it can be forked where the longer one cannot.
  const Tokens shorter(20, 1);
  ASSERT_TRUE(index.insert(fill(*cache, shorter), shorter));
  EXPECT_EQ(index.size(), 2U);
  hit = index.lookup(Tokens(30, 1));
  ASSERT_TRUE(hit && hit->seq);
  EXPECT_EQ(hit->tokens, 20);
  EXPECT_EQ(hit->possible, 29);
  EXPECT_EQ(hit->why, Miss::evicted_rows);
  EXPECT_EQ(wrong_rows(*cache, *hit->seq, shorter), "");
  EXPECT_TRUE(cache->close(*hit->seq));
  hit = index.lookup(Tokens(static_cast<std::size_t>(oldest) + 1, 1));
  ASSERT_TRUE(hit && hit->seq);
  EXPECT_EQ(hit->tokens, oldest);
  EXPECT_EQ(hit->why, Miss::none);
}

}  // namespace
}  // namespace stet::kv_test
