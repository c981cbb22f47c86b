// What the layouts share: sequences and their handles, the checks of every call, steps, views, and the bytes of rows. A
// layout only says which cells are handed out.
//
// Every layout keeps the same rows. A group's numbers of cells lie in one table entry a sequence, in the order of
// positions, so a View is a stretch of that table. A cell that no table names is filled with poison, where there is
// any.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kv/allocator.hpp"
#include "kv/plan.hpp"
#include "stet/cache.hpp"

namespace stet::kv {

/// All that a cache keeps besides its copy of the spec and the Step handles.
struct Tables {
  base::Buffer storage;
  Array<Group> groups;
  Array<LayerPlace> layers;
  Array<SeqRecord> seqs;
  Array<Held> held;            // [sequence][group]
  Array<std::uint32_t> cells;  // [sequence][group][cell]
  Array<Slice> slices;         // of the step alive; never more than max_seqs, as a sequence is in it once
};

/// The tables of any layout, the storage filled with poison. Generations of handles start at `first_generation`.
Result<Tables> make_tables(const CacheSpec& spec, const CacheOptions& options, std::uint32_t first_generation,
                           Allocator& allocator);

/// Slots [slot, slot + count) of a cell.
struct Slots {
  int slot = 0, count = 0;
};

/// The slots of a cell that hold rows of a sequence of `end` tokens. The cell is one that it holds.
Slots slots_of(const Held& held, Pos end, Pos cell) noexcept;

/// What a cache is made for.
struct Made {
  const CacheSpec& spec;
  const CacheOptions& options;
  const CachePlan& plan;
};

class Store : public Cache {
 public:
  /// `reserved`: bytes that the allocator handed out for it.
  Store(const Made& made, Tables tables, std::size_t reserved);

  const CacheSpec& spec() const noexcept final { return spec_; }
  const CacheOptions& options() const noexcept final { return options_; }

  Result<Seq> open() final;
  Result<void> close(Seq seq) final;
  Result<Pos> length(Seq seq) const final;
  Result<void> truncate(Seq seq, Pos len) final;
  Result<Pos> oldest_restorable(Seq seq) const final;
  Result<Seq> fork(Seq seq, Pos upto) final;
  Result<Seq> restore(Pos length, std::span<const View> layers) final;
  Result<std::unique_ptr<Step>> begin(std::span<const Append> appends) final;
  Result<View> peek(Seq seq, int layer) const final;
  CacheUsage usage() const noexcept final;
  std::vector<PageInfo> pages() const override;

 protected:
  /// Cells in use and those of them in more than one sequence, in bytes.
  struct InUse {
    std::size_t live = 0, shared = 0;
  };

  // What a layout says. `index` is a sequence, `g` a group.

  /// The number of `cell`, which is about to become the last of the sequence's.
  virtual std::uint32_t place(std::uint32_t index, std::size_t g, Pos cell) noexcept = 0;
  /// Entries [from, to) of the sequence's numbers are about to go.
  virtual void drop(std::uint32_t, std::size_t, std::size_t, std::size_t) noexcept {}
  /// Whether there is room for a step, and for a new sequence of `length` tokens that holds what `held(index)` says.
  virtual Result<void> admit(std::span<const Slice>) const { return {}; }
  virtual Result<void> admit(std::uint32_t /*index*/, Pos /*length*/) const { return {}; }
  /// Called before a slice's new cells are placed; after they are gone again; or when the step's rows are the
  /// sequence's.
  virtual void prepare(const Slice&) noexcept {}
  virtual void undo(const Slice&) noexcept {}
  virtual void settle(const Slice&) noexcept {}
  /// Gives a new sequence, whose shape is set, the first `upto` tokens of another.
  virtual void share(std::uint32_t from, std::uint32_t to, Pos upto) noexcept;
  virtual InUse in_use() const noexcept;

  // What layouts work with.

  Group& group(std::size_t g) noexcept { return tables_.groups[g]; }
  const Group& group(std::size_t g) const noexcept { return tables_.groups[g]; }
  std::size_t groups() const noexcept { return tables_.groups.size(); }
  SeqRecord& record(std::uint32_t index) noexcept { return tables_.seqs[index]; }
  const SeqRecord& record(std::uint32_t index) const noexcept { return tables_.seqs[index]; }
  std::uint32_t seqs() const noexcept { return static_cast<std::uint32_t>(tables_.seqs.size()); }
  Held& held(std::uint32_t index, std::size_t g) noexcept { return tables_.held[index * groups() + g]; }
  const Held& held(std::uint32_t index, std::size_t g) const noexcept { return tables_.held[index * groups() + g]; }
  std::uint32_t* cells(std::uint32_t index, std::size_t g) noexcept {
    return tables_.cells.all().data() + at(index, g);
  }
  const std::uint32_t* cells(std::uint32_t index, std::size_t g) const noexcept {
    return tables_.cells.all().data() + at(index, g);
  }
  bool in_step(const SeqRecord& seq) const noexcept { return seq.step == step_; }

  /// The cell that entry `i` of the numbers is.
  static Pos cell_at(const Held& held, std::size_t i) noexcept;
  /// Where a cell is among the numbers, the sequence's or past them.
  static std::size_t entry_of(const Held& held, Pos cell) noexcept;

  /// Whether `cell` of the sequence is the one of that number.
  bool holds(std::uint32_t index, std::size_t g, Pos cell, std::uint32_t number) const noexcept;
  /// Gives a sequence cells for positions up to `end`.
  void extend(std::uint32_t index, Pos end) noexcept;
  /// Copies rows from a cell of a group to another, and counts their bytes.
  void copy_rows(std::size_t g, std::uint32_t from, std::uint32_t to, Slots slots) noexcept;
  /// Fills the slots of a cell that hold no row of any sequence with poison.
  void clear(std::size_t g, Pos cell, std::uint32_t number) noexcept;

 private:
  class Pending;

  std::size_t at(std::uint32_t index, std::size_t g) const noexcept {
    return index * numbers_ + tables_.groups[g].table;
  }
  std::byte* cell_bytes(const LayerPlace& place, std::uint32_t number) noexcept {
    return tables_.storage.data() + place.offset + number * place.layout.bytes;
  }

  Result<void> no_step_alive() const;
  Result<void> find(Seq seq) const;
  Result<std::uint32_t> free_slot() const;
  Result<void> check_length(Seq seq, Pos len, const char* verb) const;
  Result<void> fits(const Append& append) const;
  Result<void> check_view(const View& view, std::size_t layer, Pos length) const;
  void shape(std::uint32_t index, Pos length, std::span<const View> views) noexcept;
  void fill(std::uint32_t index, Pos length, std::span<const View> views) noexcept;
  Seq use(std::uint32_t index, Pos length) noexcept;

  void cut(std::uint32_t index, std::size_t g, std::size_t keep) noexcept;
  void shrink(std::uint32_t index) noexcept;
  void clear_last(std::uint32_t index, std::size_t g) noexcept;
  void evict(std::uint32_t index) noexcept;
  Pos first_needed(const Group& group, Pos length) const noexcept;
  Pos oldest(std::uint32_t index, std::size_t g) const noexcept;
  unsigned rows_in(std::uint32_t index, std::size_t g, Pos cell, std::uint32_t number) const noexcept;
  View view_of(std::uint32_t index, std::size_t layer, Pos end) const noexcept;

  // For Pending.
  std::span<const Slice> slices(std::uint64_t step, std::size_t count) const noexcept;
  void write(int layer, const Slice& slice, HeadRange heads, Rows k, Rows v) noexcept;
  View step_view(int layer, const Slice& slice) const noexcept;
  void abandon(std::span<const Slice> slices) noexcept;
  void commit(std::span<const Slice> slices) noexcept;

  CacheSpec spec_;
  CacheOptions options_;
  CachePlan plan_;
  std::size_t reserved_;
  Tables tables_;
  std::size_t numbers_ = 0;  // entries of a sequence in tables_.cells
  Pos tokens_ = 0;
  int open_ = 0;
  std::uint64_t copied_ = 0;
  std::uint64_t step_ = 0;  // steps begun; the number of the latest
  bool step_alive_ = false;
};

}  // namespace stet::kv
