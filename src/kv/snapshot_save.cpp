#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <vector>

#include "base/new_file.hpp"
#include "kv/cell.hpp"
#include "kv/encode.hpp"
#include "kv/plan.hpp"
#include "kv/snapshot.hpp"

namespace stet::kv {
namespace {

// The rows of a layer that any query at position `oldest` or later sees, as a View may have them.
SavedBlock rows_needed(const Span& span, Pos oldest) noexcept {
  SavedBlock block;
  if (span.window == 0) return block;
  block.first = std::max<Pos>(0, oldest - rows_behind(span.window));
  if (span.sinks > 0) {
    block.kept = static_cast<Pos>(cells_for(span.sinks)) * kCell;
    block.first -= block.first % kCell;
    if (block.kept >= block.first) block.kept = block.first = 0;  // no hole
  }
  return block;
}

bool holds(const View& view, const SavedBlock& block) noexcept {
  return view.first == 0 || (view.first <= block.first && view.kept >= block.kept);
}

// Copies rows [first, end) of a cell into a cell of zeros: whatever else lies there is not part of the sequence.
void copy_rows(const View& view, Pos cell, Pos first, Pos end, const CellLayout& layout, std::byte* to) {
  const auto slot = static_cast<int>(std::max(first - cell * kCell, Pos{0}));
  const int count = static_cast<int>(std::min(end - cell * kCell, kCell)) - slot;
  // Blocks are for writing too, so reading goes through a pointer that could write.
  auto* from = const_cast<std::byte*>(view.cell(cell));
  for (int head = 0; head < layout.kv_heads; ++head) {
    copy_keys(key_block(*view.layout, from, head), key_block(layout, to, head), slot, count);
    copy_values(value_block(*view.layout, from, head), value_block(layout, to, head), slot, count);
  }
}

class Saver {
 public:
  Saver(base::NewFile file, const Cache& cache, const std::function<bool()>& stop)
      : file_(std::move(file)), cache_(cache), stop_(stop) {}

  // Cells first, as their digests stand in the tables.
  Result<void> run(SnapshotTables& tables, std::span<const SaveSequence> sequences, std::size_t table_size) {
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      for (std::size_t layer = 0; layer < tables.layers.layers.size(); ++layer) {
        auto view = cache_.peek(sequences[s].seq, static_cast<int>(layer));
        if (!view) return pass(view);
        SavedSequence& to = tables.sequences[s];
        if (auto ok = block(*view, tables.layers.layers[layer], to.length(), to.blocks[layer]); !ok) return ok;
      }
    }
    const std::vector<std::byte> bytes = table_bytes(tables);
    const SnapshotHeader header{end_, table_size, base::digest_of(bytes)};
    if (auto ok = file_.write(kHeaderBytes, bytes); !ok) return ok;
    if (auto ok = file_.write(0, header_bytes(header)); !ok) return ok;
    return file_.commit();
  }

  void start_at(std::uint64_t offset) noexcept { end_ = offset; }

 private:
  Result<void> block(const View& view, const LayerSpec& layer, Pos length, SavedBlock& to) {
    constexpr std::size_t kAtOnce = std::size_t{1} << 20;
    const CellLayout layout = cell_layout(layer);
    std::vector<std::byte> cells;
    base::Hasher hasher;
    to.offset = end_;
    const auto flush = [&]() -> Result<void> {
      if (stop_ && stop_()) return fail(Code::interrupted, "saving was interrupted; nothing was written");
      hasher.update(cells);
      if (auto ok = file_.write(end_, cells); !ok) return ok;
      end_ += cells.size();
      cells.clear();
      return {};
    };
    const auto add = [&](Pos first, Pos end) -> Result<void> {
      for (Pos cell = first / kCell; cell * kCell < end && first < end; ++cell) {
        cells.resize(cells.size() + layout.bytes);  // zeros
        copy_rows(view, cell, first, end, layout, cells.data() + cells.size() - layout.bytes);
        if (cells.size() < kAtOnce) continue;
        if (auto ok = flush(); !ok) return ok;
      }
      return {};
    };
    if (auto ok = add(0, to.kept); !ok) return ok;
    if (auto ok = add(to.first, length); !ok) return ok;
    if (auto ok = flush(); !ok) return ok;
    to.digest = hasher.digest();
    return {};
  }

  base::NewFile file_;
  const Cache& cache_;
  const std::function<bool()>& stop_;
  std::uint64_t end_ = 0;
};

// Tables with everything but the places and digests of the cells.
Result<SnapshotTables> describe(const Identity& identity, const Cache& cache, std::span<const SaveSequence> sequences) {
  SnapshotTables tables{identity, cache.spec(), {}};
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const SaveSequence& given = sequences[s];
    const auto length = cache.length(given.seq);
    if (!length) return pass(length);
    if (static_cast<std::size_t>(*length) != given.tokens.size()) {
      return fail(Code::invalid_argument,
                  fmt::format("sequence {} to save has {} rows and {} tokens", s, *length, given.tokens.size()));
    }
    const auto oldest = cache.oldest_restorable(given.seq);
    if (!oldest) return pass(oldest);
    SavedSequence saved{std::string(given.salt), {given.tokens.begin(), given.tokens.end()}, {}};
    for (std::size_t layer = 0; layer < tables.layers.layers.size(); ++layer) {
      saved.blocks.push_back(rows_needed(tables.layers.layers[layer].span, *oldest));
      const auto view = cache.peek(given.seq, static_cast<int>(layer));
      if (!view) return pass(view);
      if (!holds(*view, saved.blocks.back())) {
        return fail(Code::invalid_argument, fmt::format("sequence {} to save: layer {} lacks rows from position {}", s,
                                                        layer, saved.blocks.back().first));
      }
    }
    tables.sequences.push_back(std::move(saved));
  }
  return tables;
}

}  // namespace

Result<void> save(const std::filesystem::path& path, const Identity& identity, const Cache& cache,
                  std::span<const SaveSequence> sequences, const std::function<bool()>& stop) {
  try {
    auto tables = describe(identity, cache, sequences);
    if (!tables) return pass(tables);
    const std::size_t table_size = table_bytes(*tables).size();
    if (table_size > kMostTableBytes) {
      return fail(Code::capacity,
                  fmt::format("{}: {} bytes of tables, of at most {}", path.string(), table_size, kMostTableBytes));
    }
    auto file = base::NewFile::create(path);
    if (!file) return pass(file);
    Saver saver(std::move(*file), cache, stop);
    saver.start_at(kHeaderBytes + table_size);
    return saver.run(*tables, sequences, table_size);
  } catch (const std::bad_alloc&) {
    return fail(Code::capacity, fmt::format("{}: the system refused memory to save it", path.string()));
  }
}

}  // namespace stet::kv
