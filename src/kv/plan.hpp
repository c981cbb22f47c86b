// Where a cache's bytes lie. Everything that has a size is computed in plan.cpp and nowhere else.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "stet/cache.hpp"

namespace stet::kv {

/// A layer's cells and where they start in the storage of each sequence. A table of the cache, one entry a layer.
struct LayerPlace {
  CellLayout layout;
  std::size_t offset = 0;
};

/// What the cache knows of a sequence slot. A table of the cache, one entry for each of max_seqs.
struct SeqRecord {
  Pos length = 0;
  std::uint64_t step = 0;  // the last step it took part in: finds a sequence named twice without any clean-up
  std::uint32_t generation = 0;
  bool open = false;
};

/// Cells that positions [0, tokens) touch.
constexpr std::size_t cells_for(Pos tokens) noexcept {
  return static_cast<std::size_t>(tokens / kCell + (tokens % kCell != 0 ? 1 : 0));
}

/// Fills one entry a layer. For specs and options that plan_cache accepted.
void place_layers(const CacheSpec& spec, const CacheOptions& options, std::span<LayerPlace> places);

/// Calls f(cell, slot, offset, count) for each cell that positions [first, first + tokens) touch; `offset` counts the
/// positions before it.
template <class F>
void for_each_cell(Pos first, Pos tokens, F f) {
  for (Pos done = 0; done < tokens;) {
    const Pos slot = (first + done) % kCell;
    const Pos count = std::min(kCell - slot, tokens - done);
    f(static_cast<std::size_t>((first + done) / kCell), static_cast<int>(slot), done, static_cast<int>(count));
    done += count;
  }
}

}  // namespace stet::kv
