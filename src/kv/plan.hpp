// Where a cache's bytes lie. Everything that has a size is computed in plan.cpp and nowhere else.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "stet/cache.hpp"

namespace stet::kv {

/// Layers alike (equal LayerSpecs): they keep the same positions in cells of the same numbers, so one table of numbers
/// serves all of them. A group's storage is [layer][cell]. A table of the cache.
struct Group {
  std::uint32_t layer = 0, layers = 0;  // the first, and how many
  bool evicts = false;                  // at commit, what no later query sees
  Pos behind = 0;                       // rows before the next position that have to be there; see rows_behind
  Pos sink_cells = 0;                   // cells at the start that are never evicted
  std::size_t table = 0, cells = 0;     // a sequence's numbers: where in its stretch of the table, how many at most
  std::size_t page = 0, pages = 0;      // paged: where in the tables of pages, how many the pool has
  std::size_t cell_bytes = 0, row_bytes = 0;  // of a cell and of a token, all layers of the group
};

/// A layer's group, and where its cells start in the storage. A table of the cache, one entry a layer.
struct LayerPlace {
  CellLayout layout;
  std::size_t offset = 0;
  std::uint32_t group = 0;
};

/// What the cache knows of a sequence slot. A table of the cache, one entry for each of max_seqs.
struct SeqRecord {
  Pos length = 0;
  std::uint64_t step = 0;   // the last step it took part in: finds a sequence named twice without any clean-up
  std::uint32_t slice = 0;  // its slice there
  std::uint32_t generation = 0;
  bool open = false;
  bool second = false;  // growing: in the second of its two places
};

/// What a sequence holds of a group: positions [0, kept) and [first, its end), in that order in its `cells` numbers, as
/// in a View. A table of the cache, one entry for each sequence and group.
struct Held {
  Pos kept = 0, first = 0;
  std::size_t cells = 0;
};

/// Paged: pages of a group that are free, and that have several owners. A table of the cache, one entry a group.
struct Pool {
  std::size_t free = 0, shared = 0;
};

/// How many of each a cache has.
struct Counts {
  std::size_t groups = 0;
  std::size_t storage = 0;  // bytes of all cells
  std::size_t table = 0;    // numbers of cells, of one sequence
  std::size_t pages = 0;    // of all pools
};
Counts count(const CacheSpec& spec, const CacheOptions& options) noexcept;

/// Fills one entry a layer and one a group. For specs and options that plan_cache accepted.
void lay_out(const CacheSpec& spec, const CacheOptions& options, std::span<LayerPlace> layers,
             std::span<Group> groups) noexcept;

/// Cells that positions [0, tokens) touch.
constexpr std::size_t cells_for(Pos tokens) noexcept {
  return static_cast<std::size_t>(tokens / kCell + (tokens % kCell != 0 ? 1 : 0));
}

/// Rows before the next position that a window needs, none evicted of which its query sees. At least one: the cell of
/// a sequence's last row is always there, and its page is found by it.
constexpr Pos rows_behind(Pos window) noexcept {
  return std::max<Pos>(window - 1, 1);
}

/// Rows that a window keeps: also what the last token's query sees, so that a sequence can always be cut back by one
/// and computed from its last token again, as a full prefix hit is.
constexpr Pos rows_kept(Pos window) noexcept {
  return rows_behind(window) + 1;
}

/// The most tokens of one sequence that a step can bring.
constexpr Pos longest_step(const CacheOptions& options) noexcept {
  return options.max_step_tokens == 0 ? options.max_len : std::min(options.max_step_tokens, options.max_len);
}

/// Calls f(cell, slot, offset, count) for each cell that positions [first, first + tokens) touch; `offset` counts the
/// positions before it.
template <class F>
void for_each_cell(Pos first, Pos tokens, F f) {
  for (Pos done = 0; done < tokens;) {
    const Pos slot = (first + done) % kCell;
    const Pos count = std::min(kCell - slot, tokens - done);
    f((first + done) / kCell, static_cast<int>(slot), done, static_cast<int>(count));
    done += count;
  }
}

}  // namespace stet::kv
