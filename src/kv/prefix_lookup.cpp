// Looking up in a prefix index, and why a hit is no longer than it is.
#include <algorithm>
#include <tuple>
#include <utility>

#include "kv/prefix_index.hpp"

namespace stet::kv {
namespace {

// All but the last token: that one is always computed, for its logits.
Pos most_of(std::span<const TokenId> ids) {
  return std::max<Pos>(0, static_cast<Pos>(ids.size()) - 1);
}

}  // namespace

const char* name_of(Miss miss) noexcept {
  switch (miss) {
    case Miss::none:
      return "none";
    case Miss::never_seen:
      return "never_seen";
    case Miss::evicted:
      return "evicted";
    case Miss::evicted_rows:
      return "evicted_rows";
    case Miss::different_salt:
      return "different_salt";
    case Miss::different_identity:
      return "different_identity";
    case Miss::no_room:
      break;
  }
  return "no_room";
}

Pos common_prefix(std::span<const TokenId> a, std::span<const TokenId> b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

Result<PrefixHit> PrefixIndex::lookup(std::span<const TokenId> ids, std::string_view salt) {
  const Found found = find(ids, salt);
  PrefixHit hit;
  if (found.tokens > 0) {
    auto seq = fork(found.entry, found.tokens);
    if (!seq) return pass(seq);
    hit.seq = *seq;
    if (hit.seq) hit.tokens = found.tokens;
  }
  hit.possible = hit.tokens;
  hit.why = hit.tokens == most_of(ids) ? Miss::none : Miss::never_seen;
  const auto consider = [&](Pos tokens, Miss why) {
    if (tokens > hit.possible) std::tie(hit.possible, hit.why) = std::pair(tokens, why);
  };
  consider(found.tokens, Miss::no_room);
  consider(found.possible, Miss::evicted_rows);
  if (hit.tokens < most_of(ids)) {
    for (const Miss why : {Miss::evicted, Miss::different_identity}) {
      for (const Ghost& ghost : ghosts_) {
        if (ghost.why == why && ghost.salt == salt)
          consider(std::min(common_prefix(ids, ghost.tokens), most_of(ids)), why);
      }
    }
    for (const auto& [other, tree] : trees_) {
      if (other == salt) continue;
      consider(std::min(static_cast<Pos>(tree.match(ids).tokens), most_of(ids)), Miss::different_salt);
    }
  }
  ++stats_.lookups;
  stats_.tokens_asked += ids.size();
  stats_.tokens_hit += static_cast<std::uint64_t>(hit.tokens);
  stats_.hits += hit.tokens > 0 ? 1 : 0;
  stats_.full_hits += hit.why == Miss::none && hit.tokens > 0 ? 1 : 0;
  ++stats_.misses[static_cast<std::size_t>(hit.why)];
  return hit;
}

// From the deepest node upwards: what lies below a node has its tokens in common with `ids`, and no more than those
// beside the way down. A sequence that cannot be forked where it leaves `ids` can be forked nowhere before either.
PrefixIndex::Found PrefixIndex::find(std::span<const TokenId> ids, std::string_view salt) const {
  Found found;
  const auto tree = trees_.find(salt);
  if (tree == trees_.end()) return found;
  const RadixTree::Match match = tree->second.match(ids.first(static_cast<std::size_t>(most_of(ids))));
  auto tokens = static_cast<Pos>(match.tokens);
  found.possible = tokens;
  const RadixTree::Node* except = nullptr;
  for (const RadixTree::Node* node = match.node; node != nullptr && tokens > 0; except = node, node = node->parent) {
    if (except != nullptr) tokens = std::min(tokens, static_cast<Pos>(node->depth));
    if (tokens == 0) break;
    found.entry = most_recent(node, except, tokens);
    if (found.entry == RadixTree::kNone) continue;
    found.tokens = tokens;
    break;
  }
  return found;
}

// Of the sequences at and below `node`, but not below `except`, that can be forked at `upto`.
PrefixIndex::EntryId PrefixIndex::most_recent(const RadixTree::Node* node, const RadixTree::Node* except,
                                              Pos upto) const {
  EntryId best = RadixTree::kNone;
  std::uint64_t used = 0;
  std::vector<const RadixTree::Node*> left = {node};
  while (!left.empty()) {
    const RadixTree::Node* next = left.back();
    left.pop_back();
    if (next == except) continue;
    if (next->value != RadixTree::kNone) {
      const Entry& entry = entries_.at(next->value);
      if (entry.oldest <= upto && entry.used > used) std::tie(best, used) = std::pair(next->value, entry.used);
    }
    for (const auto& child : next->children) left.push_back(child.get());
  }
  return best;
}

// None when the cache has no sequence to spare.
Result<std::optional<Seq>> PrefixIndex::fork(EntryId from, Pos upto) {
  entries_.at(from).used = ++uses_;
  while (true) {
    auto seq = cache_.fork(entries_.at(from).seq, upto);
    if (seq) return std::optional<Seq>(*seq);
    if (seq.error().code != Code::capacity && seq.error().code != Code::exhausted) return pass(seq);
    const auto other = least_recent(from);
    if (!other) return hand_over(from, upto);
    if (auto ok = evict(*other); !ok) return pass(ok);
  }
}

// Cuts the parked sequence itself and gives it away, where it is not pinned.
Result<std::optional<Seq>> PrefixIndex::hand_over(EntryId from, Pos upto) {
  const Entry& entry = entries_.at(from);
  if (entry.pins > 0) return std::optional<Seq>();
  if (auto ok = cache_.truncate(entry.seq, upto); !ok) return pass(ok);
  const Seq seq = entry.seq;
  remember(entry.tokens, entry.salt, Miss::evicted);
  drop(from);
  ++stats_.handed_over;
  return std::optional<Seq>(seq);
}

}  // namespace stet::kv
