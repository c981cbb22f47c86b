// The prefix index against a list of token vectors that is searched from end to end, by random operations.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>

#include "kv/index_snapshot.hpp"
#include "kv/prefix_support.hpp"

namespace stet::kv_test {
namespace {

using kv::Miss;
using kv::PrefixIndex;
using kv::PrefixOptions;

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
