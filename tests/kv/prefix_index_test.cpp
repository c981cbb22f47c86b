// The prefix index against a list of token vectors that is searched from end to end.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>

#include "kv/index_snapshot.hpp"
#include "kv/prefix_index.hpp"
#include "kv/snapshot_support.hpp"

namespace stet::kv_test {
namespace {

using kv::Miss;
using kv::PrefixIndex;
using kv::PrefixOptions;

CacheSpec full_spec() {
  CacheSpec spec;
  spec.layers = {{1, 1, 2, Codec::f64, Codec::f64, {}}, {1, 1, 2, Codec::f64, Codec::f64, {}}};
  return spec;
}

CacheSpec window_spec() {
  CacheSpec spec = full_spec();
  spec.layers[1].span = {9, 0};
  return spec;
}

std::unique_ptr<Cache> small_cache(Layout layout, const CacheSpec& spec, int seqs) {
  CacheOptions options;
  options.layout = layout;
  options.page_tokens = 32;
  options.max_len = 96;
  options.max_seqs = seqs;
  options.poison = std::numeric_limits<double>::quiet_NaN();
  auto cache = make_cache(spec, options);
  if (!cache) throw std::runtime_error(cache.error().message);
  return std::move(*cache);
}

Seq fill(Cache& cache, const Tokens& tokens) {
  const Seq seq = cache.open().value();
  Tokens so_far;
  EXPECT_TRUE(append(cache, seq, so_far, tokens));
  return seq;
}

// Whether a sequence holds the rows that follow from its tokens, as far as its next query sees them.
std::string wrong_rows(const Cache& cache, Seq seq, const Tokens& tokens) {
  if (cache.length(seq).value() != static_cast<Pos>(tokens.size())) return "its length is wrong";
  const auto& layers = cache.spec().layers;
  for (int layer = 0; layer < static_cast<int>(layers.size()); ++layer) {
    const View view = cache.peek(seq, layer).value();
    for (Pos pos = 0; pos < static_cast<Pos>(tokens.size()); ++pos) {
      if (!visible(view.span, pos, static_cast<Pos>(tokens.size()))) continue;
      const auto prefix = std::span<const TokenId>(tokens).first(static_cast<std::size_t>(pos) + 1);
      std::array<double, 2> v{};
      double k = 0;
      if (!read_key(view, 0, pos, {&k, 1}) || !read_value(view, 0, pos, v)) return "a row is missing";
      if (k != value_after(prefix, layer, 0, 0, true) || v[1] != value_after(prefix, layer, 0, 1, false)) {
        return "the row at " + std::to_string(pos) + " is of other tokens";
      }
    }
  }
  return "";
}

// ---- One thing at a time

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

// ---- At random

struct Setup {
  const char* name;
  Layout layout;
  bool windows;
  int hash_bits;
  std::size_t ghost_tokens;
  std::size_t budget;  // in bytes of a page of 32 tokens
};

class Random100k : public testing::TestWithParam<Setup> {};

class Driver {
 public:
  Driver(const Setup& setup, std::uint64_t seed)
      : random_(seed), cache_(small_cache(setup.layout, setup.windows ? window_spec() : full_spec(), kSeqs)) {
    options_.hash_bits = setup.hash_bits;
    options_.ghost_tokens = setup.ghost_tokens;
    if (setup.budget > 0) options_.budget = setup.budget * 2 * cell_bytes() * cache_->spec().layers.size();
    index_ = std::make_unique<PrefixIndex>(*cache_, options_);
  }

  void run(int operations) {
    for (int i = 0; i < operations && !testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE("operation " + std::to_string(i));
      operate();
      check(i % 64 == 0);
      if (i % 20000 == 19999) through_a_file();
    }
  }

  void finish() {
    for (const Running& one : running_) EXPECT_TRUE(cache_->close(one.seq));
    through_a_file();
    index_.reset();
    EXPECT_EQ(cache_->usage().seqs, 0);
    EXPECT_EQ(cache_->usage().live, 0U);
  }

  std::map<std::string, int> done;

 private:
  static constexpr int kSeqs = 12;

  // What is parked, into a cache of each layout.
  void through_a_file() {
    const Folder folder;
    ASSERT_TRUE(kv::save_index(folder / "file", {}, *cache_, *index_));
    const auto snapshot = kv::Snapshot::open(folder / "file");
    ASSERT_TRUE(snapshot);
    const auto parked = index_->parked();
    for (const Layout layout : {Layout::contiguous, Layout::growing, Layout::paged}) {
      auto other = small_cache(layout, cache_->spec(), kSeqs);
      PrefixIndex again(*other);
      ASSERT_EQ(kv::restore_index(*snapshot, {}, *other, again).value(), parked.size());
      const auto restored = again.parked();
      ASSERT_EQ(restored.size(), parked.size());
      for (std::size_t i = 0; i < parked.size(); ++i) {
        EXPECT_TRUE(std::ranges::equal(restored[i].tokens, parked[i].tokens));
        EXPECT_EQ(restored[i].salt, parked[i].salt);
        // A cache that keeps everything can go back as far as what it was given; others keep what windows see.
        if (layout == Layout::growing) {
          EXPECT_EQ(restored[i].oldest, parked[i].oldest);
        } else {
          EXPECT_GE(restored[i].oldest, parked[i].oldest);
        }
        EXPECT_EQ(difference(*cache_, parked[i].seq, *other, restored[i].seq), "");
      }
    }
  }

  struct Running {
    Seq seq;
    Tokens tokens;
    std::string salt;
  };
  struct Known {
    Tokens tokens;
    std::string salt;
    Pos oldest = 0;
    std::set<std::uint64_t> pins;
    std::size_t bytes = 0;  // where nothing is shared
  };
  struct Lost {
    Tokens tokens;
    std::string salt;
  };

  std::size_t cell_bytes() const {
    const Seq seq = cache_->open().value();
    const std::size_t bytes = cache_->peek(seq, 0).value().layout->bytes;
    EXPECT_TRUE(cache_->close(seq));
    return bytes;
  }

  static Pos common(const Tokens& a, const Tokens& b) {
    Pos n = 0;
    while (n < static_cast<Pos>(std::min(a.size(), b.size())) &&
           a[static_cast<std::size_t>(n)] == b[static_cast<std::size_t>(n)])
      ++n;
    return n;
  }

  void operate() {
    const int die = pick(random_, 1, 100);
    if (die <= 45) return look();
    if (die <= 75) return park();
    if (die <= 80) return abandon();
    if (die <= 88) return pin();
    if (die <= 94) return unpin();
    if (die <= 96) return evict();
    return extend();
  }

  // Often like something that is known, or was.
  Tokens some_ids() {
    Tokens ids;
    const int die = pick(random_, 1, 100);
    if (die <= 60 && !known_.empty()) ids = known_[random_() % known_.size()].tokens;
    if (die > 60 && die <= 75 && !lost_.empty()) ids = lost_[random_() % lost_.size()].tokens;
    if (chance(random_, 40)) ids.resize(static_cast<std::size_t>(pick(random_, 0, static_cast<int>(ids.size()))));
    for (int more = chance(random_, 50) ? pick(random_, 0, 4) : pick(random_, 0, 25); more > 0; --more) {
      ids.push_back(pick(random_, 0, 2));
    }
    ids.resize(std::min<std::size_t>(ids.size(), 80));
    return ids;
  }

  std::string some_salt() { return chance(random_, 70) ? "" : chance(random_, 50) ? "a" : "ab"; }

  void touch(std::size_t at) {
    Known moved = std::move(known_[at]);
    known_.erase(known_.begin() + static_cast<std::ptrdiff_t>(at));
    known_.push_back(std::move(moved));
  }

  void lose(std::size_t at) {
    Known& gone = known_[at];
    remember(gone.tokens, gone.salt);
    known_.erase(known_.begin() + static_cast<std::ptrdiff_t>(at));
  }

  void remember(Tokens tokens, const std::string& salt) {
    tokens.resize(std::min(tokens.size(), options_.ghost_tokens));
    if (tokens.empty()) return;
    const auto covered = [&](const Lost& lost) {
      return lost.salt == salt && common(lost.tokens, tokens) == static_cast<Pos>(tokens.size());
    };
    if (std::any_of(lost_.begin(), lost_.end(), covered)) return;
    std::erase_if(lost_, [&](const Lost& lost) {
      return lost.salt == salt && common(lost.tokens, tokens) == static_cast<Pos>(lost.tokens.size());
    });
    lost_.push_back({tokens, salt});
    const auto total = [&] {
      std::size_t sum = 0;
      for (const Lost& lost : lost_) sum += lost.tokens.size();
      return sum;
    };
    while (total() > options_.ghost_tokens) lost_.erase(lost_.begin());
  }

  std::optional<std::size_t> oldest_unpinned(std::optional<std::size_t> except = {}) const {
    for (std::size_t i = 0; i < known_.size(); ++i) {
      if (known_[i].pins.empty() && i != except) return i;
    }
    return {};
  }

  void look() {
    const Tokens ids = some_ids();
    const std::string salt = some_salt();
    const Pos most = std::max<Pos>(0, static_cast<Pos>(ids.size()) - 1);
    // The best that can be forked; later entries are more recently used.
    std::optional<std::size_t> best;
    Pos tokens = 0, by_ids = 0, by_salt = 0, by_ghosts = 0;
    for (std::size_t i = 0; i < known_.size(); ++i) {
      const Pos n = std::min(most, common(known_[i].tokens, ids));
      if (known_[i].salt != salt) {
        by_salt = std::max(by_salt, n);
        continue;
      }
      by_ids = std::max(by_ids, n);
      if (n == 0 || n < known_[i].oldest || n < tokens) continue;
      tokens = n;
      best = i;
    }
    std::string expected = "hit";
    if (best) {
      while (cache_->usage().seqs - static_cast<int>(model_closed_) == kSeqs) {
        const auto other = oldest_unpinned(best);
        if (!other) break;
        lose(*other);
        ++model_closed_;
        if (*other < *best) --*best;
      }
      if (cache_->usage().seqs - static_cast<int>(model_closed_) == kSeqs) {
        expected = known_[*best].pins.empty() ? "handed over" : "no room";
      }
      model_closed_ = 0;
      touch(*best);
      if (expected == "handed over") lose(known_.size() - 1);
    }
    for (const Lost& lost : lost_) {
      if (lost.salt == salt) by_ghosts = std::max(by_ghosts, std::min(most, common(lost.tokens, ids)));
    }
    if (!known_.empty()) {
      by_salt = 0;  // what was evicted on the way no longer counts
      for (const Known& one : known_) {
        if (one.salt != salt) by_salt = std::max(by_salt, std::min(most, common(one.tokens, ids)));
      }
    } else {
      by_salt = 0;
    }
    const Pos hit_tokens = expected == "no room" ? 0 : tokens;
    Pos possible = hit_tokens;
    Miss why = hit_tokens == most ? Miss::none : Miss::never_seen;
    const auto consider = [&](Pos n, Miss reason) {
      if (n > possible) {
        possible = n;
        why = reason;
      }
    };
    consider(tokens, Miss::no_room);
    consider(by_ids, Miss::evicted_rows);
    consider(by_ghosts, Miss::evicted);
    consider(by_salt, Miss::different_salt);

    const auto hit = index_->lookup(ids, salt);
    ASSERT_TRUE(hit) << hit.error().message;
    ASSERT_EQ(hit->tokens, hit_tokens);
    EXPECT_EQ(hit->possible, possible);
    EXPECT_EQ(hit->why, why) << kv::name_of(hit->why) << ", not " << kv::name_of(why);
    ASSERT_EQ(hit->seq.has_value(), hit_tokens > 0);
    ++done[kv::name_of(hit->why)];
    if (best) ++done[expected];
    Tokens so_far(ids.begin(), ids.begin() + hit_tokens);
    std::optional<Seq> seq = hit->seq;
    if (!seq) {
      auto opened = cache_->open();
      if (!opened) {
        if (!oldest_unpinned()) return;
        evict();
        opened = cache_->open();
      }
      ASSERT_TRUE(opened);
      seq = *opened;
    }
    EXPECT_EQ(wrong_rows(*cache_, *seq, so_far), "");
    running_.push_back({*seq, so_far, salt});
    grow(running_.back(), std::span(ids).subspan(so_far.size()));
  }

  void grow(Running& one, std::span<const TokenId> more) {
    if (more.empty()) return;
    ASSERT_TRUE(append(*cache_, one.seq, one.tokens, more));
  }

  void extend() {
    if (running_.empty()) return;
    Running& one = running_[random_() % running_.size()];
    if (one.tokens.size() >= 90) return;
    const Tokens more(static_cast<std::size_t>(pick(random_, 1, 5)), pick(random_, 0, 2));
    grow(one, more);
  }

  void park() {
    if (running_.empty()) return;
    const std::size_t at = random_() % running_.size();
    const Running one = running_[at];
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(at));
    const Pos oldest = cache_->oldest_restorable(one.seq).value();
    std::size_t bytes = 0;
    for (int layer = 0; layer < 2; ++layer) {
      const View view = cache_->peek(one.seq, layer).value();
      bytes += view.cells.size() * view.layout->bytes;
    }
    ASSERT_TRUE(index_->insert(one.seq, one.tokens, one.salt));
    if (one.tokens.empty()) return;
    // The most recently used of those that make it redundant.
    for (std::size_t i = known_.size(); i-- > 0;) {
      const Known& other = known_[i];
      if (other.salt != one.salt || other.oldest > oldest) continue;
      if (common(other.tokens, one.tokens) < static_cast<Pos>(one.tokens.size())) continue;
      ++done["duplicate"];
      touch(i);
      return shrink();
    }
    Known added{one.tokens, one.salt, oldest, {}, bytes};
    for (std::size_t i = known_.size(); i-- > 0;) {
      Known& other = known_[i];
      if (other.salt != one.salt || other.oldest < oldest) continue;
      if (common(other.tokens, one.tokens) < static_cast<Pos>(other.tokens.size())) continue;
      added.pins.insert(other.pins.begin(), other.pins.end());
      known_.erase(known_.begin() + static_cast<std::ptrdiff_t>(i));
      ++done["replaced"];
    }
    known_.push_back(added);
    ++done["parked"];
    shrink();
  }

  // What the budget evicted. Bytes of pages that are shared are the cache's business: then its word is taken for how
  // many went, and checked against the cache when nothing runs.
  void shrink() {
    if (cache_->options().layout == Layout::paged) {
      while (known_.size() > index_->size()) {
        ++done["over budget"];
        const auto at = oldest_unpinned();
        ASSERT_TRUE(at);
        lose(*at);
      }
      return;
    }
    const auto total = [&] {
      std::size_t sum = 0;
      for (const Known& one : known_) sum += one.bytes;
      return sum;
    };
    while (total() > options_.budget) {
      const auto at = oldest_unpinned();
      if (!at) break;
      ++done["over budget"];
      lose(*at);
    }
    EXPECT_EQ(index_->bytes(), total());
  }

  void abandon() {
    if (running_.empty()) return;
    const std::size_t at = random_() % running_.size();
    EXPECT_TRUE(cache_->close(running_[at].seq));
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(at));
  }

  void evict() {
    const auto at = oldest_unpinned();
    if (at) lose(*at);
    EXPECT_EQ(index_->evict_one().value(), at.has_value());
    ++done[at ? "evicted one" : "nothing to evict"];
  }

  void pin() {
    if (pins_.size() >= 6) return;
    const Tokens ids = some_ids();
    const std::string salt = some_salt();
    const auto pin = index_->pin(ids, salt);
    for (std::size_t i = known_.size(); i-- > 0 && !ids.empty();) {
      if (known_[i].salt != salt || common(known_[i].tokens, ids) < static_cast<Pos>(ids.size())) continue;
      ASSERT_TRUE(pin);
      known_[i].pins.insert(*pin);
      pins_.push_back(*pin);
      ++done["pinned"];
      return;
    }
    EXPECT_FALSE(pin);
  }

  void unpin() {
    if (pins_.empty()) return;
    const std::size_t at = random_() % pins_.size();
    EXPECT_TRUE(index_->unpin(pins_[at]));
    EXPECT_FALSE(index_->unpin(pins_[at]));
    for (Known& one : known_) one.pins.erase(pins_[at]);
    pins_.erase(pins_.begin() + static_cast<std::ptrdiff_t>(at));
  }

  void check(bool thoroughly) {
    ASSERT_EQ(index_->size(), known_.size());
    ASSERT_EQ(cache_->usage().seqs, static_cast<int>(known_.size() + running_.size()));
    if (running_.empty()) {
      EXPECT_EQ(index_->bytes(), cache_->usage().live);
      ++done["nothing runs"];
    }
    const auto pinned = [&](const Known& one) { return !one.pins.empty(); };
    if (index_->bytes() > options_.budget) {
      EXPECT_TRUE(std::all_of(known_.begin(), known_.end(), pinned));
    }
    if (!thoroughly) return;
    const auto parked = index_->parked();
    for (std::size_t i = 0; i < known_.size(); ++i) {
      ASSERT_EQ(Tokens(parked[i].tokens.begin(), parked[i].tokens.end()), known_[i].tokens) << "place " << i;
      EXPECT_EQ(parked[i].salt, known_[i].salt);
      EXPECT_EQ(parked[i].oldest, known_[i].oldest);
      EXPECT_EQ(parked[i].pinned, pinned(known_[i]));
      EXPECT_EQ(wrong_rows(*cache_, parked[i].seq, known_[i].tokens), "");
    }
  }

  Random random_;
  std::unique_ptr<Cache> cache_;
  PrefixOptions options_;
  std::unique_ptr<PrefixIndex> index_;
  std::vector<Running> running_;
  std::vector<Known> known_;  // least recently used first
  std::vector<Lost> lost_;
  std::vector<std::uint64_t> pins_;
  int model_closed_ = 0;
};

TEST_P(Random100k, AgreesWithASearchOfAll) {
  Driver driver(GetParam(), 7);
  // STET_OPS: how many operations.
  const char* asked = std::getenv("STET_OPS");
  driver.run(asked != nullptr ? std::max(std::atoi(asked), 100000) : 100000);
  driver.finish();
  for (const char* what : {"none", "never_seen", "evicted", "different_salt", "hit", "handed over", "no room",
                           "duplicate", "replaced", "parked", "evicted one", "pinned", "nothing runs"}) {
    EXPECT_GE(driver.done[what], 20) << what;
  }
  // Growing storage evicts no rows.
  EXPECT_EQ(driver.done["evicted_rows"] >= 20, GetParam().windows && GetParam().layout != Layout::growing);
  EXPECT_EQ(driver.done["over budget"] >= 20, GetParam().budget > 0);
}

INSTANTIATE_TEST_SUITE_P(All, Random100k,
                         testing::Values(Setup{"contiguous", Layout::contiguous, false, 64, 1000, 0},
                                         Setup{"contiguous_budget_8_bits", Layout::contiguous, false, 8, 200, 9},
                                         Setup{"growing_windows", Layout::growing, true, 64, 1000, 0},
                                         Setup{"paged", Layout::paged, false, 64, 1000, 0},
                                         Setup{"paged_budget_1_bit", Layout::paged, false, 1, 60, 7},
                                         Setup{"paged_windows_8_bits", Layout::paged, true, 8, 1000, 0},
                                         Setup{"contiguous_windows_budget", Layout::contiguous, true, 64, 300, 5}),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace stet::kv_test
