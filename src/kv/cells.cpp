// Which cells a Store's sequences hold, and what can be seen of it.
#include <algorithm>

#include "kv/store.hpp"

namespace stet::kv {

// What a restored sequence keeps: what its next queries see, in whole cells where the views have them; without eviction
// all that they have.
void Store::shape(std::uint32_t index, Pos length, std::span<const View> views) noexcept {
  for (std::size_t g = 0; g < groups(); ++g) {
    const Group& alike = group(g);
    Pos first = alike.evicts ? std::max<Pos>(length - alike.behind - 1, 0) / kCell * kCell : 0;
    for (std::size_t i = 0; i < views.size(); ++i) {
      // Only a view without sinks can begin in the middle of a cell.
      if (tables_.layers[i].group == g && (!alike.evicts || first >= views[i].kept))
        first = std::max(first, views[i].first);
    }
    const Pos sinks = alike.sink_cells * kCell;
    held(index, g) = first > sinks ? Held{sinks, first, 0} : Held{};
  }
}

// The first position that a sequence keeps beside its sinks; 0 when that is all.
Pos Store::first_needed(const Group& alike, Pos length) const noexcept {
  if (!alike.evicts || length <= alike.behind + 1) return 0;
  const Pos first = (length - alike.behind - 1) / kCell * kCell;  // rows_kept
  return first > alike.sink_cells * kCell ? first : 0;
}

Pos Store::cell_at(const Held& held, std::size_t i) noexcept {
  const auto entry = static_cast<Pos>(i), kept = held.kept / kCell;
  return entry < kept ? entry : entry - kept + held.first / kCell;
}

std::size_t Store::entry_of(const Held& held, Pos cell) noexcept {
  const Pos kept = held.kept / kCell;
  return static_cast<std::size_t>(cell < kept ? cell : cell + kept - held.first / kCell);
}

bool Store::holds(std::uint32_t index, std::size_t g, Pos cell, std::uint32_t number) const noexcept {
  const Held& has = held(index, g);
  if (cell >= has.kept / kCell && cell < has.first / kCell) return false;
  const std::size_t entry = entry_of(has, cell);
  return entry < has.cells && cells(index, g)[entry] == number;
}

// Gives a sequence cells for positions up to `end`.
void Store::extend(std::uint32_t index, Pos end) noexcept {
  const auto cells_at_end = static_cast<Pos>(cells_for(end));
  for (std::size_t g = 0; g < groups(); ++g) {
    Held& has = held(index, g);
    for (Pos cell = cell_at(has, has.cells); cell < cells_at_end; cell = cell_at(has, has.cells)) {
      cells(index, g)[has.cells] = place(index, g, cell);
      ++has.cells;
    }
  }
}

// Takes away all but the first `keep` cells.
void Store::cut(std::uint32_t index, std::size_t g, std::size_t keep) noexcept {
  Held& has = held(index, g);
  const std::size_t had = has.cells;
  drop(index, g, keep, had);
  has.cells = keep;
  for (std::size_t i = keep; i < had; ++i) clear(g, cell_at(has, i), cells(index, g)[i]);
}

// Takes away what lies beyond a sequence's length.
void Store::shrink(std::uint32_t index) noexcept {
  const Pos length = record(index).length;
  for (std::size_t g = 0; g < groups(); ++g) {
    if (length == 0) {
      cut(index, g, 0);
      held(index, g) = {};
    } else {
      cut(index, g, entry_of(held(index, g), static_cast<Pos>(cells_for(length))));
      clear_last(index, g);
    }
  }
}

// Only rows of its last cell that the sequence no longer has.
void Store::clear_last(std::uint32_t index, std::size_t g) noexcept {
  const Held& has = held(index, g);
  if (has.cells > 0) clear(g, cell_at(has, has.cells - 1), cells(index, g)[has.cells - 1]);
}

// Takes away whole cells that no later query sees.
void Store::evict(std::uint32_t index) noexcept {
  for (std::size_t g = 0; g < groups(); ++g) {
    Held& has = held(index, g);
    const Group& alike = group(g);
    const Pos first = first_needed(alike, record(index).length), gone = std::max(has.first / kCell, alike.sink_cells);
    if (first / kCell <= gone) continue;
    const auto sinks = static_cast<std::size_t>(alike.sink_cells);
    const auto count = static_cast<std::size_t>(first / kCell - gone);
    std::uint32_t* numbers = cells(index, g);
    drop(index, g, sinks, sinks + count);
    std::rotate(numbers + sinks, numbers + sinks + count, numbers + has.cells);
    has = {alike.sink_cells * kCell, first, has.cells - count};
    for (std::size_t i = 0; i < count; ++i) clear(g, gone + static_cast<Pos>(i), numbers[has.cells + i]);
  }
}

View Store::view_of(std::uint32_t index, std::size_t layer, Pos end) const noexcept {
  const LayerPlace& place = tables_.layers[layer];
  const Held& has = held(index, place.group);
  View view;
  view.base = tables_.storage.data() + place.offset;
  view.cells = {cells(index, place.group), entry_of(has, static_cast<Pos>(cells_for(end)))};
  view.layout = &place.layout;
  view.first = has.first;
  view.count = end - has.first;
  view.kept = has.kept;
  view.span = spec_.layers[layer].span;
  return view;
}

Store::InUse Store::in_use() const noexcept {
  InUse bytes;
  for (std::uint32_t index = 0; index < seqs(); ++index) {
    for (std::size_t g = 0; g < groups(); ++g) bytes.live += held(index, g).cells * group(g).cell_bytes;
  }
  return bytes;
}

CacheUsage Store::usage() const noexcept {
  const InUse bytes = in_use();
  std::size_t used = 0;
  for (std::size_t g = 0; g < groups(); ++g) {
    for (std::uint32_t index = 0; index < seqs(); ++index) {
      if (!record(index).open) continue;
      const Held& has = held(index, g);
      used += static_cast<std::size_t>(has.kept + record(index).length - has.first) * group(g).row_bytes;
    }
  }
  return {reserved_, used, bytes.live, bytes.shared, copied_, tokens_, open_};
}

std::vector<PageInfo> Store::pages() const {
  std::vector<PageInfo> places;
  for (std::size_t g = 0; g < groups(); ++g) {
    for (std::uint32_t index = 0; index < seqs(); ++index) {
      const SeqRecord& seq = record(index);
      const Held& has = held(index, g);
      if (seq.length == 0) continue;
      places.push_back({static_cast<int>(g), static_cast<int>(group(g).layer), static_cast<int>(group(g).layers), index,
                        has.first, seq.length - has.first, static_cast<Pos>(group(g).cells) * kCell, 1, index});
    }
  }
  return places;
}

}  // namespace stet::kv
