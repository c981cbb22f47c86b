#include "kv/paged.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace stet::kv {
namespace {

// No cell has this number.
constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

// SplitMix64 (Steele, Lea and Flood 2014): the next number of the sequence that `state` is in.
std::uint64_t next_random(std::uint64_t& state) noexcept {
  std::uint64_t z = state += 0x9e3779b97f4a7c15U;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9U;
  z = (z ^ z >> 27) * 0x94d049bb133111ebU;
  return z ^ z >> 31;
}

}  // namespace

Result<PageTables> make_page_tables(const CacheSpec& spec, const CacheOptions& options, std::span<const Group> groups,
                                    Allocator& allocator) {
  const std::size_t count_of_pages = count(spec, options).pages;
  PageTables tables;
  auto owners = allocator.array<std::uint32_t>(count_of_pages);
  if (!owners) return pass(owners);
  tables.owners = std::move(*owners);
  auto free = allocator.array<std::uint32_t>(count_of_pages);
  if (!free) return pass(free);
  tables.free = std::move(*free);
  auto pools = allocator.array<Pool>(groups.size());
  if (!pools) return pass(pools);
  tables.pools = std::move(*pools);
  auto replaced = allocator.array<std::uint32_t>(static_cast<std::size_t>(options.max_seqs) * groups.size());
  if (!replaced) return pass(replaced);
  tables.replaced = std::move(*replaced);

  std::uint64_t random = options.shuffle.value_or(0);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto stack = tables.free.all().subspan(groups[g].page, groups[g].pages);
    tables.pools[g].free = stack.size();
    for (std::size_t i = 0; i < stack.size(); ++i) stack[i] = static_cast<std::uint32_t>(stack.size() - 1 - i);
    for (std::size_t i = stack.size(); options.shuffle && i > 1; --i) {
      std::swap(stack[i - 1], stack[static_cast<std::size_t>(next_random(random) % i)]);
    }
  }
  return tables;
}

Paged::Paged(const Made& made, Tables tables, PageTables pages, std::size_t reserved)
    : Store(made, std::move(tables), reserved),
      pages_(std::move(pages)),
      page_cells_(static_cast<std::uint32_t>(made.options.page_tokens / kCell)) {}

void Paged::own(std::size_t g, std::uint32_t page) noexcept {
  if (++owners(g, page) == 2) ++pages_.pools[g].shared;
}

void Paged::disown(std::size_t g, std::uint32_t page) noexcept {
  const std::uint32_t left = --owners(g, page);
  if (left == 1) --pages_.pools[g].shared;
  if (left == 0) pages_.free[group(g).page + pages_.pools[g].free++] = page;
}

std::uint32_t Paged::take(std::size_t g) noexcept {
  const std::uint32_t page = pages_.free[group(g).page + --pages_.pools[g].free];
  own(g, page);
  return page;
}

std::uint32_t Paged::place(std::uint32_t index, std::size_t g, Pos cell) noexcept {
  const Held& has = held(index, g);
  const auto in_page = static_cast<std::uint32_t>(cell % page_cells_);
  if (has.cells > 0 && cell_at(has, has.cells - 1) / page_cells_ == cell / page_cells_) {
    return page_of(cells(index, g)[has.cells - 1]) * page_cells_ + in_page;
  }
  return take(g) * page_cells_ + in_page;
}

void Paged::drop(std::uint32_t index, std::size_t g, std::size_t from, std::size_t to) noexcept {
  const std::uint32_t* numbers = cells(index, g);
  for (std::size_t i = from; i < to; ++i) {
    const std::uint32_t page = page_of(numbers[i]);
    if (i + 1 < to && page_of(numbers[i + 1]) == page) continue;
    const bool stays =
        (from > 0 && page_of(numbers[from - 1]) == page) || (to < held(index, g).cells && page_of(numbers[to]) == page);
    if (!stays) disown(g, page);
  }
}

// Pages that hold [0, kept) and [first, end).
std::size_t Paged::pages_for(const Held& held, Pos end) const noexcept {
  const Pos tokens = options().page_tokens;
  const auto up = [&](Pos pos) { return (pos + tokens - 1) / tokens; };
  return static_cast<std::size_t>(up(held.kept) + up(end) - std::max(up(held.kept), held.first / tokens));
}

Result<void> Paged::admit(std::span<const Slice> slices) const {
  for (std::size_t g = 0; g < groups(); ++g) {
    for (const Slice& slice : slices) {
      const std::size_t need = pages_for(held(slice.seq.index, g), slice.first + slice.tokens);
      if (need <= group(g).pages) continue;
      return fail(Code::capacity, fmt::format("sequence {} needs {} pages of layer {} but the pool has {}",
                                              slice.seq.index, need, group(g).layer, group(g).pages));
    }
  }
  for (std::size_t g = 0; g < groups(); ++g) {
    std::size_t need = 0;
    for (const Slice& slice : slices) {
      const Held& has = held(slice.seq.index, g);
      need += pages_for(has, slice.first + slice.tokens) - pages_for(has, slice.first) + (copies(slice, g) ? 1 : 0);
    }
    if (need <= pages_.pools[g].free) continue;
    return fail(Code::exhausted, fmt::format("the step needs {} pages of layer {} but {} of {} are free", need,
                                             group(g).layer, pages_.pools[g].free, group(g).pages));
  }
  return {};
}

Result<void> Paged::admit(std::uint32_t index, Pos length) const {
  for (std::size_t g = 0; g < groups(); ++g) {
    const std::size_t need = pages_for(held(index, g), length);
    if (need <= pages_.pools[g].free) continue;
    const bool ever = need <= group(g).pages;
    return fail(ever ? Code::exhausted : Code::capacity,
                fmt::format("a sequence of {} tokens needs {} pages of layer {} but {} of {} are free", length, need,
                            group(g).layer, pages_.pools[g].free, group(g).pages));
  }
  return {};
}

// Whether another owner of the page where the slice begins keeps it from being written to: by rows there, or because it
// writes there itself. Every slice that is blocked is so by an owner that keeps the page.
bool Paged::blocks(std::uint32_t other, const Slice& slice, std::size_t g) const noexcept {
  const SeqRecord& seq = record(other);
  if (!seq.open || other == slice.seq.index || seq.length < slice.first) return false;
  const Held& has = held(slice.seq.index, g);
  const Pos last = (slice.first - 1) / kCell;
  const std::uint32_t number = cells(slice.seq.index, g)[entry_of(has, last)];
  if (seq.length == slice.first) {
    return in_step(seq) && seq.slice < record(slice.seq.index).slice && holds(other, g, last, number);
  }
  const Pos page_end = (last / page_cells_ + 1) * page_cells_;
  for (Pos cell = slice.first / kCell; cell < page_end; ++cell) {
    if (holds(other, g, cell, number + static_cast<std::uint32_t>(cell - last))) return true;
  }
  return false;
}

// Whether a slice has to copy its last page first.
bool Paged::copies(const Slice& slice, std::size_t g) const noexcept {
  if (slice.first % options().page_tokens == 0) return false;
  const std::uint32_t index = slice.seq.index;
  const Held& has = held(index, g);
  if (owners(g, page_of(cells(index, g)[entry_of(has, (slice.first - 1) / kCell)])) == 1) return false;
  for (std::uint32_t other = 0; other < seqs(); ++other) {
    if (blocks(other, slice, g)) return true;
  }
  return false;
}

// The first of the sequence's numbers that are in one page with that of `entry` and before it.
std::size_t Paged::page_start(std::uint32_t index, std::size_t g, std::size_t entry) const noexcept {
  const std::uint32_t* numbers = cells(index, g);
  while (entry > 0 && page_of(numbers[entry - 1]) == page_of(numbers[entry])) --entry;
  return entry;
}

void Paged::prepare(const Slice& slice) noexcept {
  const std::uint32_t index = slice.seq.index;
  for (std::size_t g = 0; g < groups(); ++g) {
    replaced(slice, g) = kNone;
    if (!copies(slice, g)) continue;
    const Held& has = held(index, g);
    std::uint32_t* numbers = cells(index, g);
    const std::uint32_t page = take(g);
    replaced(slice, g) = numbers[has.cells - 1];
    disown(g, page_of(numbers[has.cells - 1]));
    for (std::size_t i = page_start(index, g, has.cells - 1); i < has.cells; ++i) {
      const std::uint32_t number = page * page_cells_ + numbers[i] % page_cells_;
      copy_rows(g, numbers[i], number, slots_of(has, slice.first, cell_at(has, i)));
      numbers[i] = number;
    }
  }
}

void Paged::undo(const Slice& slice) noexcept {
  const std::uint32_t index = slice.seq.index;
  for (std::size_t g = 0; g < groups(); ++g) {
    if (replaced(slice, g) == kNone) continue;
    const Held& has = held(index, g);
    std::uint32_t* numbers = cells(index, g);
    const std::uint32_t before = page_of(replaced(slice, g)), copy = page_of(numbers[has.cells - 1]);
    for (std::size_t i = page_start(index, g, has.cells - 1); i < has.cells; ++i) {
      const std::uint32_t number = std::exchange(numbers[i], before * page_cells_ + numbers[i] % page_cells_);
      clear(g, cell_at(has, i), number);
    }
    own(g, before);
    disown(g, copy);
  }
}

// Rows of the page that was left may have been this sequence's alone: those that its other owners have evicted.
void Paged::settle(const Slice& slice) noexcept {
  const std::uint32_t index = slice.seq.index;
  for (std::size_t g = 0; g < groups(); ++g) {
    if (replaced(slice, g) == kNone) continue;
    const Held& has = held(index, g);
    const std::size_t last = entry_of(has, (slice.first - 1) / kCell);
    for (std::size_t i = page_start(index, g, last); i <= last; ++i) {
      const std::uint32_t in_page = cells(index, g)[i] % page_cells_;
      clear(g, cell_at(has, i), page_of(replaced(slice, g)) * page_cells_ + in_page);
    }
  }
}

void Paged::share(std::uint32_t from, std::uint32_t to, Pos upto) noexcept {
  for (std::size_t g = 0; g < groups(); ++g) {
    Held& has = held(to, g);
    has.cells = entry_of(has, static_cast<Pos>(cells_for(upto)));
    std::uint32_t* numbers = cells(to, g);
    std::copy_n(cells(from, g), has.cells, numbers);
    for (std::size_t i = 0; i < has.cells; ++i) {
      if (i == 0 || page_of(numbers[i]) != page_of(numbers[i - 1])) own(g, page_of(numbers[i]));
    }
  }
}

Store::InUse Paged::in_use() const noexcept {
  InUse bytes;
  for (std::size_t g = 0; g < groups(); ++g) {
    const std::size_t page_bytes = page_cells_ * group(g).cell_bytes;
    bytes.live += (group(g).pages - pages_.pools[g].free) * page_bytes;
    bytes.shared += pages_.pools[g].shared * page_bytes;
  }
  return bytes;
}

std::vector<PageInfo> Paged::pages() const {
  std::vector<PageInfo> infos;
  std::vector<std::size_t> known;  // where a page is among them
  for (std::size_t g = 0; g < groups(); ++g) {
    known.assign(group(g).pages, 0);
    for (std::uint32_t index = 0; index < seqs(); ++index) {
      const Held& has = held(index, g);
      for (std::size_t i = 0; i < has.cells; ++i) {
        const std::uint32_t page = page_of(cells(index, g)[i]);
        const Pos first = cell_at(has, i) / page_cells_ * options().page_tokens;
        if (known[page] == 0) {
          infos.push_back({static_cast<int>(g), static_cast<int>(group(g).layer), static_cast<int>(group(g).layers),
                           page, first, 0, options().page_tokens, static_cast<int>(owners(g, page)), index});
          known[page] = infos.size();
        }
        const Slots slots = slots_of(has, record(index).length, cell_at(has, i));
        Pos& filled = infos[known[page] - 1].filled;
        if (slots.count > 0) filled = std::max(filled, cell_at(has, i) * kCell + slots.slot + slots.count - first);
      }
    }
  }
  return infos;
}

}  // namespace stet::kv
