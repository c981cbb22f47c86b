// The bytes of a Store's rows: written, copied, and filled with poison where there are none.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "kv/encode.hpp"
#include "kv/store.hpp"

namespace stet::kv {
namespace {

HeadRows rows_of_head(Rows rows, int row, int head, int dim) noexcept {
  const std::size_t column = static_cast<std::size_t>(head) * static_cast<std::size_t>(dim) * size_of(rows.type);
  return {rows.type, rows.data + static_cast<std::size_t>(row) * rows.row_stride + column, rows.row_stride};
}

// Copies rows in slots [slot, slot + count) from one cell to another.
void copy_slots(const CellLayout& layout, const std::byte* from, std::byte* to, Slots slots) noexcept {
  if (slots.count == kCell) {
    std::copy_n(from, layout.bytes, to);
    return;
  }
  auto* source = const_cast<std::byte*>(from);  // a block could be written to; this one is not
  for (int head = 0; head < layout.kv_heads; ++head) {
    copy_keys(key_block(layout, source, head), key_block(layout, to, head), slots.slot, slots.count);
    copy_values(value_block(layout, source, head), value_block(layout, to, head), slots.slot, slots.count);
  }
}

void fill_slots(const CellLayout& layout, std::byte* cell, Slots slots, double value) noexcept {
  for (int head = 0; head < layout.kv_heads; ++head) {
    fill_keys(key_block(layout, cell, head), slots.slot, slots.count, value);
    fill_values(value_block(layout, cell, head), slots.slot, slots.count, value);
  }
}

bool same(const CellLayout& a, const CellLayout& b) noexcept {
  return a.k == b.k && a.v == b.v && a.kv_heads == b.kv_heads && a.k_dim == b.k_dim && a.v_dim == b.v_dim &&
         a.bytes == b.bytes && a.head_stride == b.head_stride && a.v_offset == b.v_offset && a.k_scales == b.k_scales &&
         a.v_scales == b.v_scales;
}

// What View promises of its numbers.
bool is_sound(const View& view) noexcept {
  if (view.layout == nullptr || view.first < 0 || view.kept < 0 || view.count < 0) return false;
  if (view.count > std::numeric_limits<Pos>::max() - view.first) return false;
  if (view.kept == 0) return true;
  return view.kept < view.first && view.kept % kCell == 0 && view.first % kCell == 0;
}

// The first of positions [from, to) that the view does not have, or `to`.
Pos first_missing(const View& view, Pos from, Pos to) noexcept {
  Pos pos = from;
  if (pos < view.kept) pos = std::min(view.kept, to);
  if (pos >= to || pos < view.first) return pos;
  return std::clamp(view.end(), pos, to);
}

}  // namespace

Slots slots_of(const Held& held, Pos end, Pos cell) noexcept {
  const Pos start = cell * kCell;
  if (start < held.kept) return {0, static_cast<int>(kCell)};
  const Pos from = std::max(held.first - start, Pos{0}), to = std::min(end - start, kCell);
  return {static_cast<int>(from), static_cast<int>(std::max(to - from, Pos{0}))};
}

void Store::write(int layer, const Slice& slice, HeadRange heads, Rows k, Rows v) noexcept {
  const LayerPlace& place = tables_.layers[static_cast<std::size_t>(layer)];
  const Held& has = held(slice.seq.index, place.group);
  const std::uint32_t* numbers = cells(slice.seq.index, place.group);
  for_each_cell(slice.first, slice.tokens, [&](Pos number, int slot, Pos offset, int count) {
    std::byte* cell = cell_bytes(place, numbers[entry_of(has, number)]);
    const int row = slice.row + static_cast<int>(offset);
    for (int head = heads.begin; head < heads.end; ++head) {
      encode_keys(key_block(place.layout, cell, head), slot, rows_of_head(k, row, head, place.layout.k_dim), count);
      encode_values(value_block(place.layout, cell, head), slot, rows_of_head(v, row, head, place.layout.v_dim), count);
    }
  });
}

void Store::copy_rows(std::size_t g, std::uint32_t from, std::uint32_t to, Slots slots) noexcept {
  for (const LayerPlace& place : tables_.layers.all()) {
    if (place.group == g) copy_slots(place.layout, cell_bytes(place, from), cell_bytes(place, to), slots);
  }
  copied_ += static_cast<std::uint64_t>(slots.count) * group(g).row_bytes;
}

void Store::share(std::uint32_t from, std::uint32_t to, Pos upto) noexcept {
  extend(to, upto);
  for (std::size_t g = 0; g < groups(); ++g) {
    const Held& has = held(to, g);
    for (std::size_t i = 0; i < has.cells; ++i) {
      copy_rows(g, cells(from, g)[i], cells(to, g)[i], slots_of(has, upto, cell_at(has, i)));
    }
  }
}

// One bit for each slot of a cell that holds a row of the sequence.
unsigned Store::rows_in(std::uint32_t index, std::size_t g, Pos cell, std::uint32_t number) const noexcept {
  if (!holds(index, g, cell, number)) return 0;
  const Slots slots = slots_of(held(index, g), record(index).length, cell);
  return ((1U << slots.count) - 1) << slots.slot;
}

void Store::clear(std::size_t g, Pos cell, std::uint32_t number) noexcept {
  if (!options_.poison) return;
  unsigned rows = 0;
  for (std::uint32_t index = 0; index < seqs(); ++index) rows |= rows_in(index, g, cell, number);
  for (int slot = 0; slot < kCell; ++slot) {
    if ((rows >> slot & 1U) != 0) continue;
    int end = slot + 1;
    while (end < kCell && (rows >> end & 1U) == 0) ++end;
    for (const LayerPlace& place : tables_.layers.all()) {
      if (place.group == g) fill_slots(place.layout, cell_bytes(place, number), {slot, end - slot}, *options_.poison);
    }
    slot = end;
  }
}

// Whether a view holds what a layer of a restored sequence has to hold.
Result<void> Store::check_view(const View& view, std::size_t layer, Pos length) const {
  const auto refuse = [&](const std::string& why) {
    return fail(Code::invalid_argument, fmt::format("layer {}: {}", layer, why));
  };
  if (!is_sound(view)) return refuse("the view contradicts itself");
  const LayerPlace& place = tables_.layers[layer];
  if (!same(*view.layout, place.layout)) return refuse("the view's codecs or shapes are not the cache's");
  if (length == 0) return {};
  const Span span = spec_.layers[layer].span;
  const Pos behind = group(place.group).behind;
  const Pos seen = span.window > 0 ? std::max<Pos>(length - behind, 0) : 0;
  const Pos sinks = std::min(span.sinks, length);
  Pos missing = first_missing(view, 0, sinks);
  if (missing == sinks) missing = first_missing(view, seen, length);
  if (missing < length) return refuse(fmt::format("the view lacks position {}, which {} tokens need", missing, length));
  if (view.base == nullptr || view.cell_index((length - 1) / kCell) >= view.cells.size()) {
    return refuse(fmt::format("the view lacks the cell of position {}", length - 1));
  }
  return {};
}

void Store::fill(std::uint32_t index, Pos length, std::span<const View> views) noexcept {
  for (std::size_t layer = 0; layer < views.size(); ++layer) {
    const LayerPlace& place = tables_.layers[layer];
    const Held& has = held(index, place.group);
    for (std::size_t i = 0; i < has.cells; ++i) {
      const Pos cell = cell_at(has, i);
      copy_slots(place.layout, views[layer].cell(cell), cell_bytes(place, cells(index, place.group)[i]),
                 slots_of(has, length, cell));
    }
  }
}

}  // namespace stet::kv
