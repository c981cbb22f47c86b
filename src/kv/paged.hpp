// Paged storage: each group has a pool of pages that sequences share. A row that others may see is never written over:
// a sequence appends to a shared page in place only where all its other owners end earlier, or at the same position and
// outside of the step; else it copies its rows to a page of its own first. Of the owners of a page one can therefore
// always go on in place, and a pool of max_seqs times what one sequence needs never runs out.
//
// The page of a cell is its number / cells of a page, and its place in the page is its own, so cells of one page lie
// side by side in the sequence's numbers.
#pragma once

#include "kv/store.hpp"

namespace stet::kv {

struct PageTables {
  Array<std::uint32_t> owners;    // [group][page]: sequences that have it; 0: free
  Array<std::uint32_t> free;      // [group][page]: a stack of the pages that are free
  Array<Pool> pools;              // [group]
  Array<std::uint32_t> replaced;  // [slice][group]: the number before copy on write of its sequence's last cell
};

/// All pages free, in the order that options.shuffle says.
Result<PageTables> make_page_tables(const CacheSpec& spec, const CacheOptions& options, std::span<const Group> groups,
                                    Allocator& allocator);

class Paged final : public Store {
 public:
  Paged(const Made& made, Tables tables, PageTables pages, std::size_t reserved);

  std::vector<PageInfo> pages() const override;

 private:
  std::uint32_t place(std::uint32_t index, std::size_t g, Pos cell) noexcept override;
  void drop(std::uint32_t index, std::size_t g, std::size_t from, std::size_t to) noexcept override;
  Result<void> admit(std::span<const Slice> slices) const override;
  Result<void> admit(std::uint32_t index, Pos length) const override;
  void prepare(const Slice& slice) noexcept override;
  void undo(const Slice& slice) noexcept override;
  void settle(const Slice& slice) noexcept override;
  void share(std::uint32_t from, std::uint32_t to, Pos upto) noexcept override;
  InUse in_use() const noexcept override;

  std::uint32_t page_of(std::uint32_t number) const noexcept { return number / page_cells_; }
  std::uint32_t& owners(std::size_t g, std::uint32_t page) noexcept { return pages_.owners[group(g).page + page]; }
  std::uint32_t owners(std::size_t g, std::uint32_t page) const noexcept { return pages_.owners[group(g).page + page]; }
  std::uint32_t& replaced(const Slice& slice, std::size_t g) noexcept {
    return pages_.replaced[record(slice.seq.index).slice * groups() + g];
  }

  void own(std::size_t g, std::uint32_t page) noexcept;
  void disown(std::size_t g, std::uint32_t page) noexcept;
  std::uint32_t take(std::size_t g) noexcept;
  bool copies(const Slice& slice, std::size_t g) const noexcept;
  std::size_t pages_for(const Held& held, Pos end) const noexcept;
  bool blocks(std::uint32_t other, const Slice& slice, std::size_t g) const noexcept;
  std::size_t page_start(std::uint32_t index, std::size_t g, std::size_t entry) const noexcept;

  PageTables pages_;
  std::uint32_t page_cells_;
};

}  // namespace stet::kv
