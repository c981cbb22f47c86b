// Reuse across requests: finished sequences stay open in the cache, and a new prompt that begins like one of them
// starts as a fork of it. A client of Cache, which knows nothing of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kv/radix_tree.hpp"
#include "stet/cache.hpp"
#include "stet/result.hpp"
#include "stet/types.hpp"

namespace stet::kv {

/// Why a lookup hit fewer tokens than all but the last: what would have given the longest hit, had it not been so.
enum class Miss : std::uint8_t {
  none,                // all but the last were hit
  never_seen,          // no sequence known begins with more of these tokens
  evicted,             // one did, and was evicted
  evicted_rows,        // one does, but of a layer with a window the rows are gone that the next token sees
  different_salt,      // one does, under another salt
  different_identity,  // one did, in a saved file of another model (note_refused)
  no_room,             // the cache can hold no other sequence, and nothing could be evicted for it
};
inline constexpr std::size_t kMisses = 7;
const char* name_of(Miss miss) noexcept;

/// Tokens that both begin with.
Pos common_prefix(std::span<const TokenId> a, std::span<const TokenId> b);

struct PrefixOptions {
  std::size_t budget = std::numeric_limits<std::size_t>::max();  // bytes that parked sequences may hold
  std::size_t ghost_tokens = std::size_t{1} << 16;               // of evicted sequences, remembered to say `evicted`
  int hash_bits = 64;                                            // tests make hashes collide
};

struct PrefixHit {
  std::optional<Seq> seq;  // the caller's, to append to and then to park or close; none when no token was hit
  Pos tokens = 0;          // its length
  Pos possible = 0;        // what it would have been, but for `why`
  Miss why = Miss::none;
};

struct PrefixStats {
  std::uint64_t lookups = 0, hits = 0, full_hits = 0;  // hits: at least one token; full: all but the last
  std::uint64_t tokens_asked = 0, tokens_hit = 0;
  std::array<std::uint64_t, kMisses> misses{};  // by reason; of none: full hits
  std::uint64_t parked = 0, duplicates = 0, replaced = 0, evicted = 0, handed_over = 0;
};

/// A parked sequence, for saving and for those who look in. Views are valid until the index changes.
struct Parked {
  Seq seq;
  std::span<const TokenId> tokens;
  std::string_view salt;
  Pos oldest = 0;  // the shortest hit that it can give
  bool pinned = false;
};

/// One thread owns it, together with its cache, which must outlive it; so must no one else close or change a parked
/// sequence. No call while a Step is alive. All choices follow from the calls alone: no clock, no address.
class PrefixIndex {
 public:
  explicit PrefixIndex(Cache& cache, const PrefixOptions& options = {});
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;
  /// Closes all parked sequences.
  ~PrefixIndex();

  /// The longest beginning of `ids`, at most all but the last, that a parked sequence of this salt can still be forked
  /// at; of equally long ones the most recently used. Token ids are compared, never a hash alone. When the cache has no
  /// sequence free, others are evicted for it, and at last the match itself is cut and handed over. Errors are the
  /// cache's own.
  Result<PrefixHit> lookup(std::span<const TokenId> ids, std::string_view salt = {});

  /// Parks a sequence, whose rows are those of `tokens`: from now on the index owns it. It is closed instead when a
  /// parked one begins with the same tokens and can be forked as far back; and those parked that it makes as redundant
  /// are closed, their pins passing to it. Then evicts down to the budget. Code::invalid_argument when its length is
  /// not that of `tokens`, Code::not_found when it is not open: it is then still the caller's.
  Result<void> insert(Seq seq, std::span<const TokenId> tokens, std::string_view salt = {});

  /// Closes the least recently used sequence that is not pinned; false when there is none.
  Result<bool> evict_one();

  /// Keeps a parked sequence that begins with all of `ids` from being evicted or handed over, until unpin with the
  /// number that this returns. Code::not_found when there is none, and for a number that is not held.
  Result<std::uint64_t> pin(std::span<const TokenId> ids, std::string_view salt = {});
  Result<void> unpin(std::uint64_t pin);

  /// Remembers, as an evicted sequence, one of a file that was refused since it is of another model.
  void note_refused(std::span<const TokenId> tokens, std::string_view salt);

  /// Remembers one of a file for which the cache had no room.
  void note_no_room(std::span<const TokenId> tokens, std::string_view salt);

  /// Bytes of the cells that parked sequences hold, as CacheUsage::live counts them: whole pages in a paged cache,
  /// pages that several of them share once; those shared with other sequences too.
  std::size_t bytes() const noexcept { return bytes_; }
  std::size_t size() const noexcept { return entries_.size(); }
  const PrefixStats& stats() const noexcept { return stats_; }
  const PrefixOptions& options() const noexcept { return options_; }

  /// Least recently used first: parking them in this order again gives the same order.
  std::vector<Parked> parked() const;

 private:
  using EntryId = RadixTree::Value;

  // Storage that can be shared, and what it costs.
  struct Unit {
    const std::byte* at = nullptr;
    std::size_t bytes = 0;
  };
  struct Entry {
    Seq seq;
    std::vector<TokenId> tokens;
    std::string salt;
    Pos oldest = 0;
    std::uint64_t used = 0;  // a count of uses, not a time
    int pins = 0;
    RadixTree::Node* node = nullptr;
    std::vector<Unit> units;
  };
  struct Ghost {
    std::string salt;
    std::vector<TokenId> tokens;
    Miss why = Miss::evicted;
  };
  struct Found {
    EntryId entry = RadixTree::kNone;
    Pos tokens = 0;    // what it can be forked at
    Pos possible = 0;  // what the tokens alone would allow
  };

  Found find(std::span<const TokenId> ids, std::string_view salt) const;
  EntryId most_recent(const RadixTree::Node* node, const RadixTree::Node* except, Pos upto) const;
  Result<std::optional<Seq>> fork(EntryId from, Pos upto);
  Result<std::optional<Seq>> hand_over(EntryId from, Pos upto);
  std::optional<EntryId> least_recent(EntryId except) const;
  Result<void> evict(EntryId id);
  void drop(EntryId id);
  Result<bool> close_redundant(Seq seq, std::span<const TokenId> tokens, Pos oldest, std::string_view salt);
  Result<void> replace(Entry& entry, EntryId id);
  std::vector<Unit> units_of(Seq seq) const;
  void remember(std::span<const TokenId> tokens, std::string_view salt, Miss why);

  Cache& cache_;
  PrefixOptions options_;
  std::map<std::string, RadixTree, std::less<>> trees_;  // by salt; none is empty
  std::map<EntryId, Entry> entries_;
  std::map<std::uint64_t, EntryId> pins_;
  std::deque<Ghost> ghosts_;
  std::size_t ghost_tokens_ = 0;
  std::unordered_map<const std::byte*, std::size_t> holders_;  // of each unit
  std::size_t bytes_ = 0;
  EntryId next_entry_ = 1;
  std::uint64_t next_pin_ = 1, uses_ = 0;
  PrefixStats stats_;
};

}  // namespace stet::kv
