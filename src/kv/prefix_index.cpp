#include "kv/prefix_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace stet::kv {
PrefixIndex::PrefixIndex(Cache& cache, const PrefixOptions& options) : cache_(cache), options_(options) {}

PrefixIndex::~PrefixIndex() {
  for (const auto& [id, entry] : entries_) (void)cache_.close(entry.seq);
}

// ---- Parking

Result<void> PrefixIndex::insert(Seq seq, std::span<const TokenId> tokens, std::string_view salt) {
  const auto length = cache_.length(seq);
  if (!length) return pass(length);
  if (*length != static_cast<Pos>(tokens.size())) {
    return fail(Code::invalid_argument,
                fmt::format("a sequence of {} rows cannot be parked as {} tokens", *length, tokens.size()));
  }
  const auto oldest = cache_.oldest_restorable(seq);
  if (!oldest) return pass(oldest);
  auto redundant = close_redundant(seq, tokens, *oldest, salt);
  if (!redundant) return pass(redundant);
  if (!*redundant) {
    const EntryId id = next_entry_++;
    Entry entry{seq, {tokens.begin(), tokens.end()}, std::string(salt), *oldest, ++uses_, 0, nullptr, units_of(seq)};
    if (auto ok = replace(entry, id); !ok) return ok;
    entry.node = trees_.try_emplace(entry.salt, options_.hash_bits).first->second.insert(tokens);
    entry.node->value = id;
    for (const Unit& unit : entry.units) {
      if (unit.at == nullptr || holders_[unit.at]++ == 0) bytes_ += unit.bytes;
    }
    entries_.emplace(id, std::move(entry));
    ++stats_.parked;
  }
  while (bytes_ > options_.budget) {
    const auto evicted = evict_one();
    if (!evicted) return pass(evicted);
    if (!*evicted) break;
  }
  return {};
}

// Closes a sequence that adds nothing: true when it did.
Result<bool> PrefixIndex::close_redundant(Seq seq, std::span<const TokenId> tokens, Pos oldest, std::string_view salt) {
  EntryId same = RadixTree::kNone;
  if (const auto tree = trees_.find(salt); tree != trees_.end() && !tokens.empty()) {
    const RadixTree::Match match = tree->second.match(tokens);
    if (match.tokens == tokens.size()) same = most_recent(match.node, nullptr, oldest);
  }
  if (same == RadixTree::kNone && !tokens.empty()) return false;
  if (auto ok = cache_.close(seq); !ok) return pass(ok);
  if (same == RadixTree::kNone) return true;  // no tokens
  entries_.at(same).used = ++uses_;
  ++stats_.duplicates;
  return true;
}

// Closes the parked sequences that begin `entry` and can be forked no further back; their pins pass to it.
Result<void> PrefixIndex::replace(Entry& entry, EntryId id) {
  const auto tree = trees_.find(entry.salt);
  if (tree == trees_.end()) return {};
  const RadixTree::Match match = tree->second.match(entry.tokens);
  std::vector<EntryId> old;
  for (const RadixTree::Node* node = match.node; node != nullptr; node = node->parent) {
    if (node->depth > match.tokens || node->value == RadixTree::kNone) continue;
    if (entries_.at(node->value).oldest >= entry.oldest) old.push_back(node->value);
  }
  for (const EntryId one : old) {
    if (auto ok = cache_.close(entries_.at(one).seq); !ok) return ok;
    for (auto& [pin, pinned] : pins_) {
      if (pinned != one) continue;
      pinned = id;
      ++entry.pins;
    }
    drop(one);
    ++stats_.replaced;
  }
  return {};
}

// Layers alike share their pages: one of them stands for all.
std::vector<PrefixIndex::Unit> PrefixIndex::units_of(Seq seq) const {
  const auto& layers = cache_.spec().layers;
  const bool paged = cache_.options().layout == Layout::paged;
  const auto cells_of_page = static_cast<std::uint32_t>(cache_.options().page_tokens / kCell);
  std::vector<Unit> units;
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    if (std::find(layers.begin(), layers.begin() + static_cast<std::ptrdiff_t>(layer), layers[layer]) !=
        layers.begin() + static_cast<std::ptrdiff_t>(layer)) {
      continue;
    }
    const auto alike = static_cast<std::size_t>(std::count(layers.begin(), layers.end(), layers[layer]));
    const auto view = cache_.peek(seq, static_cast<int>(layer));
    if (!view) continue;
    const std::size_t bytes = alike * view->layout->bytes;
    if (!paged) {
      units.push_back({nullptr, bytes * view->cells.size()});
      continue;
    }
    const std::byte* last = nullptr;
    for (const std::uint32_t number : view->cells) {
      const std::byte* page = view->base + (number - number % cells_of_page) * view->layout->bytes;
      if (page != last) units.push_back({page, bytes * cells_of_page});
      last = page;
    }
  }
  return units;
}

// ---- Evicting

std::optional<PrefixIndex::EntryId> PrefixIndex::least_recent(EntryId except) const {
  std::optional<EntryId> least;
  for (const auto& [id, entry] : entries_) {
    if (id == except || entry.pins > 0) continue;
    if (!least || entry.used < entries_.at(*least).used) least = id;
  }
  return least;
}

Result<bool> PrefixIndex::evict_one() {
  const auto id = least_recent(RadixTree::kNone);
  if (!id) return false;
  if (auto ok = evict(*id); !ok) return pass(ok);
  return true;
}

Result<void> PrefixIndex::evict(EntryId id) {
  const Entry& entry = entries_.at(id);
  if (auto ok = cache_.close(entry.seq); !ok) return ok;
  remember(entry.tokens, entry.salt, Miss::evicted);
  drop(id);
  ++stats_.evicted;
  return {};
}

// Forgets an entry whose sequence is closed or given away.
void PrefixIndex::drop(EntryId id) {
  const auto at = entries_.find(id);
  const Entry& entry = at->second;
  for (const Unit& unit : entry.units) {
    if (unit.at == nullptr) {
      bytes_ -= unit.bytes;
    } else if (--holders_.at(unit.at) == 0) {
      holders_.erase(unit.at);
      bytes_ -= unit.bytes;
    }
  }
  const auto tree = trees_.find(entry.salt);
  tree->second.remove(entry.node);
  if (tree->second.empty()) trees_.erase(tree);
  entries_.erase(at);
}

void PrefixIndex::remember(std::span<const TokenId> tokens, std::string_view salt, Miss why) {
  tokens = tokens.first(std::min(tokens.size(), options_.ghost_tokens));
  if (tokens.empty()) return;
  for (auto ghost = ghosts_.begin(); ghost != ghosts_.end();) {
    const Pos same = ghost->salt == salt && ghost->why == why ? common_prefix(tokens, ghost->tokens) : 0;
    if (same == static_cast<Pos>(tokens.size())) return;
    if (same == static_cast<Pos>(ghost->tokens.size())) {
      ghost_tokens_ -= ghost->tokens.size();
      ghost = ghosts_.erase(ghost);
    } else {
      ++ghost;
    }
  }
  ghosts_.push_back({std::string(salt), {tokens.begin(), tokens.end()}, why});
  ghost_tokens_ += tokens.size();
  while (ghost_tokens_ > options_.ghost_tokens) {
    ghost_tokens_ -= ghosts_.front().tokens.size();
    ghosts_.pop_front();
  }
}

void PrefixIndex::note_refused(std::span<const TokenId> tokens, std::string_view salt) {
  remember(tokens, salt, Miss::different_identity);
}

void PrefixIndex::note_no_room(std::span<const TokenId> tokens, std::string_view salt) {
  remember(tokens, salt, Miss::evicted);
}

// ---- Pins, and what is there

Result<std::uint64_t> PrefixIndex::pin(std::span<const TokenId> ids, std::string_view salt) {
  EntryId id = RadixTree::kNone;
  if (const auto tree = trees_.find(salt); tree != trees_.end() && !ids.empty()) {
    const RadixTree::Match match = tree->second.match(ids);
    if (match.tokens == ids.size()) id = most_recent(match.node, nullptr, std::numeric_limits<Pos>::max());
  }
  if (id == RadixTree::kNone) {
    return fail(Code::not_found, fmt::format("no parked sequence begins with these {} tokens", ids.size()));
  }
  ++entries_.at(id).pins;
  pins_.emplace(next_pin_, id);
  return next_pin_++;
}

Result<void> PrefixIndex::unpin(std::uint64_t pin) {
  const auto at = pins_.find(pin);
  if (at == pins_.end()) return fail(Code::not_found, fmt::format("pin {} is not held", pin));
  --entries_.at(at->second).pins;
  pins_.erase(at);
  return {};
}

std::vector<Parked> PrefixIndex::parked() const {
  std::vector<const Entry*> order;
  order.reserve(entries_.size());
  for (const auto& [id, entry] : entries_) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const Entry* a, const Entry* b) { return a->used < b->used; });
  std::vector<Parked> all;
  all.reserve(order.size());
  for (const Entry* e : order) all.push_back({e->seq, e->tokens, e->salt, e->oldest, e->pins > 0});
  return all;
}

}  // namespace stet::kv
