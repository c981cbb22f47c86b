// Sequences and steps: which rows exist. The cells that they lie in are in cells.cpp, their bytes in rows.cpp.
#include "kv/store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <new>
#include <numeric>

#include "kv/encode.hpp"
#include "kv/step.hpp"

namespace stet::kv {

Result<Tables> make_tables(const CacheSpec& spec, const CacheOptions& options, std::uint32_t first_generation,
                           Allocator& allocator) {
  const Counts counts = count(spec, options);
  const auto seqs = static_cast<std::size_t>(options.max_seqs);
  Tables tables;
  const auto get = [&]<class T>(Array<T>& array, std::size_t count) -> Result<void> {
    auto got = allocator.array<T>(count);
    if (!got) return pass(got);
    array = std::move(*got);
    return {};
  };
  auto storage = allocator.bytes(counts.storage);
  if (!storage) return pass(storage);
  // Fewer translations to find cells that lie far apart: at 8,192 tokens of GPT-2's shape pages of 16 gained 13 % with
  // int8 and 8 % with f32. A pool fills densely. In a place of its own each touch of a short sequence holds 2 MB of
  // every layer, so only large places have them.
  constexpr std::size_t kLargePlace = std::size_t{4} << 20;
  if (options.layout == Layout::paged || counts.storage / (seqs * spec.layers.size()) >= kLargePlace) {
    storage->prefer_huge_pages();
  }
  tables.storage = std::move(*storage);
  if (auto ok = get(tables.groups, counts.groups); !ok) return pass(ok);
  if (auto ok = get(tables.layers, spec.layers.size()); !ok) return pass(ok);
  if (auto ok = get(tables.seqs, seqs); !ok) return pass(ok);
  if (auto ok = get(tables.held, seqs * counts.groups); !ok) return pass(ok);
  if (auto ok = get(tables.cells, seqs * counts.table); !ok) return pass(ok);
  if (auto ok = get(tables.slices, seqs); !ok) return pass(ok);

  lay_out(spec, options, tables.layers.all(), tables.groups.all());
  for (SeqRecord& record : tables.seqs.all()) record.generation = first_generation;
  if (!options.poison) return tables;
  for (std::size_t i = 0; i < tables.layers.size(); ++i) {
    const LayerPlace& place = tables.layers[i];
    const std::size_t end = i + 1 < tables.layers.size() ? tables.layers[i + 1].offset : counts.storage;
    fill_cells(place.layout, tables.storage.data() + place.offset, (end - place.offset) / place.layout.bytes,
               *options.poison);
  }
  return tables;
}

Store::Store(const Made& made, Tables tables, std::size_t reserved)
    : spec_(made.spec),
      options_(made.options),
      plan_(made.plan),
      reserved_(reserved),
      tables_(std::move(tables)),
      numbers_(tables_.cells.size() / tables_.seqs.size()) {}

Result<void> Store::no_step_alive() const {
  if (!step_alive_) return {};
  return fail(Code::invalid_argument, "a step is alive: commit or destroy it before the cache is changed");
}

Result<void> Store::find(Seq seq) const {
  if (seq.index >= seqs()) {
    return fail(Code::not_found, fmt::format("sequence {} does not exist: the cache has {}", seq.index, seqs()));
  }
  const SeqRecord& found = record(seq.index);
  if (!found.open || found.generation != seq.generation) {
    return fail(Code::not_found, fmt::format("sequence {} of generation {} is not open", seq.index, seq.generation));
  }
  return {};
}

Result<std::uint32_t> Store::free_slot() const {
  const auto all = tables_.seqs.all();
  const auto found = std::find_if(all.begin(), all.end(), [](const SeqRecord& seq) { return !seq.open; });
  if (found != all.end()) return static_cast<std::uint32_t>(found - all.begin());
  return fail(Code::capacity, fmt::format("all {} sequences of the cache are open", open_));
}

// Makes a free slot the sequence whose cells it already has.
Seq Store::use(std::uint32_t index, Pos length) noexcept {
  SeqRecord& seq = record(index);
  seq.open = true;
  seq.length = length;
  ++open_;
  tokens_ += length;
  return {index, seq.generation};
}

Result<Seq> Store::open() {
  if (auto ok = no_step_alive(); !ok) return pass(ok);
  const auto slot = free_slot();
  if (!slot) return pass(slot);
  return use(*slot, 0);
}

Result<void> Store::close(Seq seq) {
  if (auto ok = no_step_alive(); !ok) return ok;
  if (auto ok = find(seq); !ok) return ok;
  SeqRecord& closing = record(seq.index);
  tokens_ -= closing.length;
  --open_;
  closing.length = 0;
  closing.open = false;
  // Generation 0 is left out: a handle that nobody filled in is never valid.
  if (++closing.generation == 0) closing.generation = 1;
  shrink(seq.index);
  return {};
}

Result<Pos> Store::length(Seq seq) const {
  if (auto ok = find(seq); !ok) return pass(ok);
  return record(seq.index).length;
}

Pos Store::oldest(std::uint32_t index, std::size_t g) const noexcept {
  const Pos first = held(index, g).first;
  return first == 0 ? 0 : first + group(g).behind;
}

Result<Pos> Store::oldest_restorable(Seq seq) const {
  if (auto ok = find(seq); !ok) return pass(ok);
  Pos length = 0;
  for (std::size_t g = 0; g < groups(); ++g) length = std::max(length, oldest(seq.index, g));
  return length;
}

// Whether the sequence can come back to `len` tokens.
Result<void> Store::check_length(Seq seq, Pos len, const char* verb) const {
  const Pos length = record(seq.index).length;
  if (len < 0 || len > length) {
    return fail(Code::invalid_argument,
                fmt::format("sequence {} cannot be {} {} tokens: it holds {}", seq.index, verb, len, length));
  }
  if (len == 0) return {};  // the next query sees nothing
  for (std::size_t g = 0; g < groups(); ++g) {
    if (len >= oldest(seq.index, g)) continue;
    const Pos gone = std::max(held(seq.index, g).kept, len - group(g).behind);
    return fail(Code::invalid_argument,
                fmt::format("sequence {} cannot be {} {} tokens: position {} of layer {} was evicted, {} is the least",
                            seq.index, verb, len, gone, group(g).layer, *oldest_restorable(seq)));
  }
  return {};
}

Result<void> Store::truncate(Seq seq, Pos len) {
  if (auto ok = no_step_alive(); !ok) return ok;
  if (auto ok = find(seq); !ok) return ok;
  if (auto ok = check_length(seq, len, "cut to"); !ok) return ok;
  SeqRecord& kept = record(seq.index);
  tokens_ -= kept.length - len;
  kept.length = len;
  shrink(seq.index);
  return {};
}

Result<Seq> Store::fork(Seq seq, Pos upto) {
  if (auto ok = no_step_alive(); !ok) return pass(ok);
  if (auto ok = find(seq); !ok) return pass(ok);
  if (auto ok = check_length(seq, upto, "forked at"); !ok) return pass(ok);
  const auto slot = free_slot();
  if (!slot) return pass(slot);
  for (std::size_t g = 0; g < groups(); ++g) {
    const Held& from = held(seq.index, g);
    held(*slot, g) = upto == 0 ? Held{} : Held{from.kept, from.first, 0};
  }
  share(seq.index, *slot, upto);
  return use(*slot, upto);
}

Result<Seq> Store::restore(Pos length, std::span<const View> layers) {
  if (auto ok = no_step_alive(); !ok) return pass(ok);
  if (length < 0) return fail(Code::invalid_argument, fmt::format("a sequence of {} tokens cannot be", length));
  if (layers.size() != spec_.layers.size()) {
    return fail(Code::invalid_argument,
                fmt::format("{} layers are given to a cache of {}", layers.size(), spec_.layers.size()));
  }
  if (length > options_.max_len) {
    return fail(Code::capacity,
                fmt::format("a sequence of {} tokens: the cache's can hold {}", length, options_.max_len));
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (auto ok = check_view(layers[i], i, length); !ok) return pass(ok);
  }
  const auto slot = free_slot();
  if (!slot) return pass(slot);
  shape(*slot, length, layers);
  if (auto ok = admit(*slot, length); !ok) {
    for (std::size_t g = 0; g < groups(); ++g) held(*slot, g) = {};
    return pass(ok);
  }
  extend(*slot, length);
  fill(*slot, length, layers);
  return use(*slot, length);
}

Result<void> Store::fits(const Append& append) const {
  if (auto ok = find(append.seq); !ok) return ok;
  const SeqRecord& seq = record(append.seq.index);
  if (in_step(seq)) {
    return fail(Code::invalid_argument, fmt::format("sequence {} is in the step twice", append.seq.index));
  }
  const Pos need = seq.length + append.tokens;
  if (need > options_.max_len) {
    return fail(Code::capacity,
                fmt::format("sequence {} needs {} tokens but can hold {} ({} stored, {} more asked for)",
                            append.seq.index, need, options_.max_len, seq.length, append.tokens));
  }
  if (append.tokens > longest_step(options_)) {
    return fail(Code::capacity, fmt::format("sequence {} needs a step of {} tokens but the cache's come to {}",
                                            append.seq.index, append.tokens, longest_step(options_)));
  }
  return {};
}

Result<std::unique_ptr<Step>> Store::begin(std::span<const Append> appends) {
  if (auto ok = no_step_alive(); !ok) return pass(ok);
  if (appends.empty()) return fail(Code::invalid_argument, "a step needs at least one sequence");
  std::int64_t rows = 0;
  for (const Append& append : appends) {
    if (append.tokens < 1) {
      return fail(Code::invalid_argument, fmt::format("sequence {} is in the step with {} tokens: at least 1 is needed",
                                                      append.seq.index, append.tokens));
    }
    rows += append.tokens;
  }
  if (rows > std::numeric_limits<int>::max()) {
    return fail(Code::capacity,
                fmt::format("a step of {} rows: at most {} can be numbered", rows, std::numeric_limits<int>::max()));
  }
  ++step_;
  int row = 0;
  std::uint32_t count = 0;
  for (const Append& append : appends) {
    if (auto ok = fits(append); !ok) return pass(ok);
    SeqRecord& seq = record(append.seq.index);
    seq.step = step_;
    seq.slice = count;
    tables_.slices[count++] = {append.seq, seq.length, row, append.tokens};
    row += append.tokens;
  }
  const auto slices = tables_.slices.all().first(count);
  if (auto ok = admit(slices); !ok) return pass(ok);
  std::unique_ptr<Step> step(new (std::nothrow) Pending(*this, count, step_));
  if (!step) return fail(Code::capacity, "the system refused memory for a step");
  step_alive_ = true;
  for (const Slice& slice : slices) {
    prepare(slice);
    extend(slice.seq.index, slice.first + slice.tokens);
  }
  return step;
}

std::span<const Slice> Store::slices(std::uint64_t step, std::size_t count) const noexcept {
  if (step != step_) return {};
  return tables_.slices.all().first(count);
}

void Store::abandon(std::span<const Slice> slices) noexcept {
  for (const Slice& slice : slices) {
    const std::uint32_t index = slice.seq.index;
    for (std::size_t g = 0; g < groups(); ++g) {
      cut(index, g, entry_of(held(index, g), static_cast<Pos>(cells_for(slice.first))));
    }
    undo(slice);
  }
  // Only now does every sequence name its own cells again, and a cell may be shared.
  for (const Slice& slice : slices) {
    for (std::size_t g = 0; g < groups(); ++g) clear_last(slice.seq.index, g);
  }
  step_alive_ = false;
}

void Store::commit(std::span<const Slice> slices) noexcept {
  // All lengths before any cell is cleared: a cell may be shared.
  for (const Slice& slice : slices) {
    record(slice.seq.index).length += slice.tokens;
    tokens_ += slice.tokens;
  }
  for (const Slice& slice : slices) {
    settle(slice);
    evict(slice.seq.index);
  }
  step_alive_ = false;
}

View Store::step_view(int layer, const Slice& slice) const noexcept {
  return view_of(slice.seq.index, static_cast<std::size_t>(layer), slice.first + slice.tokens);
}

Result<View> Store::peek(Seq seq, int layer) const {
  if (auto ok = find(seq); !ok) return pass(ok);
  if (layer < 0 || static_cast<std::size_t>(layer) >= spec_.layers.size()) {
    return fail(Code::invalid_argument,
                fmt::format("layer {} is not among the {} of the cache", layer, spec_.layers.size()));
  }
  return view_of(seq.index, static_cast<std::size_t>(layer), record(seq.index).length);
}

}  // namespace stet::kv
