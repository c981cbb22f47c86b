// One class and its step, a little over the usual length: each call is short, and they share every member.
#include "kv/contiguous.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <new>
#include <numeric>

#include "kv/encode.hpp"
#include "kv/plan.hpp"

namespace stet::kv {
namespace {

struct Tables {
  Array<std::uint32_t> cells;  // 0, 1, 2, ...: every sequence's cells lie in order
  Array<LayerPlace> layers;
  Array<SeqRecord> seqs;
  Array<Slice> slices;  // of the step alive; never more than max_seqs, as a sequence is in it once
};

class Contiguous final : public Cache {
 public:
  Contiguous(const CacheSpec& spec, const CacheOptions& options, const CachePlan& plan, std::size_t reserved,
             base::Buffer storage, Tables tables)
      : spec_(spec),
        options_(options),
        plan_(plan),
        reserved_(reserved),
        storage_(std::move(storage)),
        tables_(std::move(tables)) {}

  const CacheSpec& spec() const noexcept override { return spec_; }
  const CacheOptions& options() const noexcept override { return options_; }

  Result<Seq> open() override;
  Result<void> close(Seq seq) override;
  Result<Pos> length(Seq seq) const override;
  Result<void> truncate(Seq seq, Pos len) override;
  Result<std::unique_ptr<Step>> begin(std::span<const Append> appends) override;
  Result<View> peek(Seq seq, int layer) const override;
  CacheUsage usage() const noexcept override;
  Result<Pos> oldest_restorable(Seq) const override { return fail(Code::unsupported, "later"); }
  Result<Seq> fork(Seq, Pos) override { return fail(Code::unsupported, "later"); }
  Result<Seq> restore(Pos, std::span<const View>) override { return fail(Code::unsupported, "later"); }
  std::vector<PageInfo> pages() const override { return {}; }

 private:
  class Pending;

  Result<void> no_step_alive() const;
  Result<void> find(Seq seq) const;
  Result<void> fits(const Append& append) const;
  void forget(std::uint32_t index, Pos first, Pos count) noexcept;
  View view_of(std::uint32_t index, int layer, Pos count) const noexcept;

  SeqRecord& record(Seq seq) noexcept { return tables_.seqs[seq.index]; }
  const SeqRecord& record(Seq seq) const noexcept { return tables_.seqs[seq.index]; }

  std::size_t offset_of(std::uint32_t index, const LayerPlace& place) const noexcept {
    return index * plan_.bytes_per_sequence + place.offset;
  }

  CacheSpec spec_;
  CacheOptions options_;
  CachePlan plan_;
  std::size_t reserved_;
  base::Buffer storage_;
  Tables tables_;
  Pos tokens_ = 0;
  int open_ = 0;
  std::uint64_t step_ = 0;  // steps begun; the number of the latest
  bool step_alive_ = false;
};

// The handle of a step. It says which step it is, so that one kept after its commit reads nothing of the next.
class Contiguous::Pending final : public Step {
 public:
  Pending(Contiguous& cache, std::size_t slices) noexcept : cache_(cache), slices_(slices), step_(cache.step_) {}
  ~Pending() override;

  std::span<const Slice> slices() const noexcept override {
    if (step_ != cache_.step_) return {};
    return cache_.tables_.slices.all().first(slices_);
  }
  void write(int layer, HeadRange heads, Rows k, Rows v) noexcept override;
  View view(int layer, int slice) const noexcept override;
  void commit() noexcept override;

 private:
  Contiguous& cache_;
  std::size_t slices_;
  std::uint64_t step_;
  bool committed_ = false;
};

Contiguous::Pending::~Pending() {
  if (committed_) return;
  for (const Slice& slice : slices()) cache_.forget(slice.seq.index, slice.first, slice.tokens);
  cache_.step_alive_ = false;
}

void Contiguous::Pending::write(int layer, HeadRange heads, Rows k, Rows v) noexcept {
  const LayerPlace& place = cache_.tables_.layers[static_cast<std::size_t>(layer)];
  const auto head_rows = [](Rows rows, int row, int head, int dim) -> HeadRows {
    const std::size_t column = static_cast<std::size_t>(head) * static_cast<std::size_t>(dim) * size_of(rows.type);
    return {rows.type, rows.data + static_cast<std::size_t>(row) * rows.row_stride + column, rows.row_stride};
  };
  for (const Slice& slice : slices()) {
    std::byte* base = cache_.storage_.data() + cache_.offset_of(slice.seq.index, place);
    for_each_cell(slice.first, slice.tokens, [&](std::size_t number, int slot, Pos offset, int count) {
      std::byte* cell = base + number * place.layout.bytes;
      const int row = slice.row + static_cast<int>(offset);
      for (int head = heads.begin; head < heads.end; ++head) {
        encode_keys(key_block(place.layout, cell, head), slot, head_rows(k, row, head, place.layout.k_dim), count);
        encode_values(value_block(place.layout, cell, head), slot, head_rows(v, row, head, place.layout.v_dim), count);
      }
    });
  }
}

View Contiguous::Pending::view(int layer, int slice) const noexcept {
  const Slice& s = slices()[static_cast<std::size_t>(slice)];
  return cache_.view_of(s.seq.index, layer, s.first + s.tokens);
}

void Contiguous::Pending::commit() noexcept {
  if (committed_) return;
  for (const Slice& slice : slices()) {
    cache_.record(slice.seq).length += slice.tokens;
    cache_.tokens_ += slice.tokens;
  }
  committed_ = true;
  cache_.step_alive_ = false;
}

Result<void> Contiguous::no_step_alive() const {
  if (!step_alive_) return {};
  return fail(Code::invalid_argument, "a step is alive: commit or destroy it before the cache is changed");
}

Result<void> Contiguous::find(Seq seq) const {
  if (seq.index >= tables_.seqs.size()) {
    return fail(Code::not_found,
                fmt::format("sequence {} does not exist: the cache has {}", seq.index, tables_.seqs.size()));
  }
  const SeqRecord& found = record(seq);
  if (!found.open || found.generation != seq.generation) {
    return fail(Code::not_found, fmt::format("sequence {} of generation {} is not open", seq.index, seq.generation));
  }
  return {};
}

Result<Seq> Contiguous::open() {
  if (auto ok = no_step_alive(); !ok) return pass(ok);
  for (std::uint32_t index = 0; index < tables_.seqs.size(); ++index) {
    SeqRecord& free = tables_.seqs[index];
    if (free.open) continue;
    free.open = true;
    ++open_;
    return Seq{index, free.generation};
  }
  return fail(Code::capacity, fmt::format("all {} sequences of the cache are open", open_));
}

Result<void> Contiguous::close(Seq seq) {
  if (auto ok = no_step_alive(); !ok) return ok;
  if (auto ok = find(seq); !ok) return ok;
  SeqRecord& closing = record(seq);
  forget(seq.index, 0, closing.length);
  tokens_ -= closing.length;
  --open_;
  closing.length = 0;
  closing.open = false;
  // Generation 0 is left out: a handle that nobody filled in is never valid.
  if (++closing.generation == 0) closing.generation = 1;
  return {};
}

Result<Pos> Contiguous::length(Seq seq) const {
  if (auto ok = find(seq); !ok) return pass(ok);
  return record(seq).length;
}

Result<void> Contiguous::truncate(Seq seq, Pos len) {
  if (auto ok = no_step_alive(); !ok) return ok;
  if (auto ok = find(seq); !ok) return ok;
  SeqRecord& kept = record(seq);
  if (len < 0 || len > kept.length) {
    return fail(Code::invalid_argument,
                fmt::format("sequence {} cannot be cut to {} tokens: it holds {}", seq.index, len, kept.length));
  }
  forget(seq.index, len, kept.length - len);
  tokens_ -= kept.length - len;
  kept.length = len;
  return {};
}

Result<void> Contiguous::fits(const Append& append) const {
  if (auto ok = find(append.seq); !ok) return ok;
  const SeqRecord& seq = record(append.seq);
  if (seq.step == step_) {
    return fail(Code::invalid_argument, fmt::format("sequence {} is in the step twice", append.seq.index));
  }
  const Pos need = seq.length + append.tokens;
  if (need > options_.max_len) {
    return fail(Code::capacity,
                fmt::format("sequence {} needs {} tokens but can hold {} ({} stored, {} more asked for)",
                            append.seq.index, need, options_.max_len, seq.length, append.tokens));
  }
  return {};
}

Result<std::unique_ptr<Step>> Contiguous::begin(std::span<const Append> appends) {
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
  std::size_t count = 0;
  for (const Append& append : appends) {
    if (auto ok = fits(append); !ok) return pass(ok);
    SeqRecord& seq = record(append.seq);
    seq.step = step_;
    tables_.slices[count++] = {append.seq, seq.length, row, append.tokens};
    row += append.tokens;
  }
  std::unique_ptr<Step> step(new (std::nothrow) Pending(*this, count));
  if (!step) return fail(Code::capacity, "the system refused memory for a step");
  step_alive_ = true;
  return step;
}

View Contiguous::view_of(std::uint32_t index, int layer, Pos count) const noexcept {
  const LayerPlace& place = tables_.layers[static_cast<std::size_t>(layer)];
  View view;
  view.base = storage_.data() + offset_of(index, place);
  view.cells = tables_.cells.all().first(cells_for(count));
  view.layout = &place.layout;
  view.count = count;
  view.span = spec_.layers[static_cast<std::size_t>(layer)].span;
  return view;
}

Result<View> Contiguous::peek(Seq seq, int layer) const {
  if (auto ok = find(seq); !ok) return pass(ok);
  if (layer < 0 || static_cast<std::size_t>(layer) >= spec_.layers.size()) {
    return fail(Code::invalid_argument,
                fmt::format("layer {} is not among the {} of the cache", layer, spec_.layers.size()));
  }
  return view_of(seq.index, layer, record(seq).length);
}

CacheUsage Contiguous::usage() const noexcept {
  return {reserved_, plan_.bytes_per_token * static_cast<std::size_t>(tokens_), 0, 0, 0, tokens_, open_};
}

// With poison, rows that stop existing become NaN again.
void Contiguous::forget(std::uint32_t index, Pos first, Pos count) noexcept {
  if (!options_.poison) return;
  for (const LayerPlace& place : tables_.layers.all()) {
    std::byte* base = storage_.data() + offset_of(index, place);
    for_each_cell(first, count, [&](std::size_t number, int slot, Pos, int slots) {
      std::byte* cell = base + number * place.layout.bytes;
      for (int head = 0; head < place.layout.kv_heads; ++head) {
        fill_keys(key_block(place.layout, cell, head), slot, slots, *options_.poison);
        fill_values(value_block(place.layout, cell, head), slot, slots, *options_.poison);
      }
    });
  }
}

}  // namespace

Result<std::unique_ptr<Cache>> make_contiguous(const CacheSpec& spec, const CacheOptions& options,
                                               const CachePlan& plan, Allocator allocator,
                                               std::uint32_t first_generation) {
  const auto seqs = static_cast<std::size_t>(options.max_seqs);
  auto storage = allocator.bytes(seqs * plan.bytes_per_sequence);
  if (!storage) return pass(storage);
  auto cells = allocator.array<std::uint32_t>(cells_for(options.max_len));
  if (!cells) return pass(cells);
  auto layers = allocator.array<LayerPlace>(spec.layers.size());
  if (!layers) return pass(layers);
  auto records = allocator.array<SeqRecord>(seqs);
  if (!records) return pass(records);
  auto slices = allocator.array<Slice>(seqs);
  if (!slices) return pass(slices);

  std::iota(cells->all().begin(), cells->all().end(), 0U);
  place_layers(spec, options, layers->all());
  for (SeqRecord& record : records->all()) record.generation = first_generation;
  if (options.poison) {
    for (std::uint32_t seq = 0; seq < seqs; ++seq) {
      for (const LayerPlace& place : layers->all()) {
        fill_cells(place.layout, storage->data() + seq * plan.bytes_per_sequence + place.offset,
                   cells_for(options.max_len), *options.poison);
      }
    }
  }
  Tables tables{std::move(*cells), std::move(*layers), std::move(*records), std::move(*slices)};
  return std::make_unique<Contiguous>(spec, options, plan, allocator.handed_out(), std::move(*storage),
                                      std::move(tables));
}

}  // namespace stet::kv
