#include "kv/snapshot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <new>
#include <numeric>
#include <vector>

#include "kv/cell.hpp"
#include "kv/encode.hpp"
#include "kv/plan.hpp"
#include "kv/sizes.hpp"

namespace stet::kv {
namespace {

// Stores the rows of `from`, which has the codecs of `old_spec`, in `to` as `new_spec` asks. Cell by cell: both hold
// the same positions.
Result<base::Buffer> reencoded(const base::Buffer& from, const LayerSpec& old_spec, const LayerSpec& new_spec) {
  const CellLayout old_layout = cell_layout(old_spec), new_layout = cell_layout(new_spec);
  const std::size_t cells = from.size() / old_layout.bytes;
  auto to = base::Buffer::allocate(multiply(cells, new_layout.bytes));
  if (!to) return to;
  std::fill_n(to->data(), to->size(), std::byte{0});
  std::vector<double> row(static_cast<std::size_t>(std::max(old_spec.k_dim, old_spec.v_dim)));
  const HeadRows rows{DType::f64, reinterpret_cast<const std::byte*>(row.data()), 0};
  for (std::size_t c = 0; c < cells; ++c) {
    auto* old_cell = const_cast<std::byte*>(from.data()) + c * old_layout.bytes;  // only read
    std::byte* new_cell = to->data() + c * new_layout.bytes;
    for (int head = 0; head < old_layout.kv_heads; ++head) {
      const Block old_k = key_block(old_layout, old_cell, head), old_v = value_block(old_layout, old_cell, head);
      for (int slot = 0; slot < static_cast<int>(kCell); ++slot) {
        for (int d = 0; d < old_k.dim; ++d) row[static_cast<std::size_t>(d)] = decode_key(old_k, slot, d);
        encode_keys(key_block(new_layout, new_cell, head), slot, rows, 1);
        for (int d = 0; d < old_v.dim; ++d) row[static_cast<std::size_t>(d)] = decode_value(old_v, slot, d);
        encode_values(value_block(new_layout, new_cell, head), slot, rows, 1);
      }
    }
  }
  return to;
}

Result<SnapshotTables> read_tables(const base::File& file) {
  const std::string where = file.path().string();
  std::array<std::byte, kHeaderBytes> first{};
  const std::span<std::byte> there(first.data(), std::min<std::uint64_t>(file.size(), first.size()));
  if (auto ok = file.read(0, there); !ok) return pass(ok);
  const auto header = parse_header(there, where);
  if (!header) return pass(header);
  if (file.size() < header->file_bytes) {
    return fail(Code::corrupt, fmt::format("{}: ends at offset {}, {} bytes before it should", where, file.size(),
                                           header->file_bytes - file.size()));
  }
  if (file.size() > header->file_bytes) {
    return fail(Code::corrupt, fmt::format("{}: goes on after its end at offset {}", where, header->file_bytes));
  }
  if (header->table_bytes > std::min<std::uint64_t>(kMostTableBytes, file.size() - kHeaderBytes)) {
    return fail(Code::corrupt, fmt::format("{}: header: {} bytes of tables cannot be", where, header->table_bytes));
  }
  auto bytes = base::Buffer::allocate(header->table_bytes);
  if (!bytes) return pass(bytes);
  const std::span<std::byte> tables(bytes->data(), header->table_bytes);
  if (auto ok = file.read(kHeaderBytes, tables); !ok) return pass(ok);
  if (!(base::digest_of(tables) == header->tables)) {
    return fail(Code::corrupt, fmt::format("{}: tables, offset {} to {}: the checksum does not match", where,
                                           kHeaderBytes, kHeaderBytes + tables.size() - 1));
  }
  return parse_tables(tables, file.size(), where);
}

Failure no_memory(const std::filesystem::path& path) {
  return fail(Code::capacity, fmt::format("{}: the system refused memory to read it", path.string()));
}

}  // namespace

Result<Snapshot> Snapshot::open(const std::filesystem::path& path) {
  auto file = base::File::open(path);
  if (!file) return pass(file);
  try {
    auto tables = read_tables(*file);
    if (!tables) return pass(tables);
    return Snapshot(std::move(*file), std::move(*tables));
  } catch (const std::bad_alloc&) {
    return no_memory(path);
  }
}

Failure Snapshot::damaged(std::size_t sequence, std::size_t layer) const {
  const SavedSequence& saved = tables_.sequences[sequence];
  const SavedBlock& block = saved.blocks[layer];
  return fail(Code::corrupt,
              fmt::format("{}: sequence {}, layer {}, offset {} to {}: the checksum does not match", path().string(),
                          sequence, layer, block.offset,
                          block.offset + block_bytes(tables_.layers.layers[layer], block, saved.length()) - 1));
}

Result<void> Snapshot::verify() const {
  constexpr std::uint64_t kAtOnce = std::uint64_t{1} << 20;
  auto buffer = base::Buffer::allocate(kAtOnce);
  if (!buffer) return pass(buffer);
  for (std::size_t s = 0; s < tables_.sequences.size(); ++s) {
    const SavedSequence& saved = tables_.sequences[s];
    for (std::size_t layer = 0; layer < saved.blocks.size(); ++layer) {
      const SavedBlock& block = saved.blocks[layer];
      const std::uint64_t size = block_bytes(tables_.layers.layers[layer], block, saved.length());
      base::Hasher hasher;
      for (std::uint64_t done = 0; done < size; done += kAtOnce) {
        const std::span<std::byte> part(buffer->data(), std::min(kAtOnce, size - done));
        if (auto ok = file_.read(block.offset + done, part); !ok) return ok;
        hasher.update(part);
      }
      if (!(hasher.digest() == block.digest)) return damaged(s, layer);
    }
  }
  return {};
}

Result<base::Buffer> Snapshot::read_block(std::size_t sequence, std::size_t layer) const {
  const SavedSequence& saved = tables_.sequences[sequence];
  const SavedBlock& block = saved.blocks[layer];
  auto buffer = base::Buffer::allocate(block_bytes(tables_.layers.layers[layer], block, saved.length()));
  if (!buffer) return buffer;
  const std::span<std::byte> bytes(buffer->data(), buffer->size());
  if (auto ok = file_.read(block.offset, bytes); !ok) return pass(ok);
  if (!(base::digest_of(bytes) == block.digest)) return damaged(sequence, layer);
  return buffer;
}

// The tokens to restore, once everything but the cells is known to fit.
Result<Pos> Snapshot::check(std::size_t index, const Identity& model, const Cache& cache,
                            const RestoreOptions& options) const {
  const std::string where = path().string();
  const bool same_codecs = options.reencode == Reencode::refused;
  if (auto ok = check_same(tables_.identity, model, where); !ok) return pass(ok);
  if (auto ok = check_layers(tables_.layers, cache.spec(), same_codecs, where); !ok) return pass(ok);
  if (index >= tables_.sequences.size()) {
    return fail(Code::invalid_argument,
                fmt::format("{}: sequence {} of {} is asked for", where, index, tables_.sequences.size()));
  }
  const SavedSequence& saved = tables_.sequences[index];
  const Pos length = options.upto.value_or(saved.length());
  if (length < 0 || length > saved.length()) {
    return fail(Code::invalid_argument,
                fmt::format("{}: sequence {} has {} tokens, {} are asked for", where, index, saved.length(), length));
  }
  // Before any cell is read: so that memory for a sequence is only asked for where the cache has room for one.
  if (length > cache.options().max_len) {
    return fail(Code::capacity, fmt::format("{}: sequence {} needs {} tokens, the cache holds {} of one sequence",
                                            where, index, length, cache.options().max_len));
  }
  for (std::size_t layer = 0; layer < saved.blocks.size(); ++layer) {
    const Pos first = saved.blocks[layer].first;
    if (length >= first) continue;
    return fail(Code::invalid_argument,
                fmt::format("{}: sequence {}, layer {}: rows before position {} are gone, and {} tokens need them",
                            where, index, layer, first, length));
  }
  return length;
}

Result<Seq> Snapshot::restore(std::size_t index, const Identity& model, Cache& cache,
                              const RestoreOptions& options) const {
  const auto length = check(index, model, cache, options);
  if (!length) return pass(length);
  const SavedSequence& saved = tables_.sequences[index];
  try {
    const auto& old_layers = tables_.layers.layers;
    const auto& new_layers = cache.spec().layers;
    std::vector<std::uint32_t> numbers(cells_for(saved.length()));
    std::iota(numbers.begin(), numbers.end(), 0U);
    std::vector<base::Buffer> cells;
    std::vector<CellLayout> layouts(old_layers.size());
    std::vector<View> views;
    for (std::size_t layer = 0; layer < old_layers.size(); ++layer) {
      const SavedBlock& block = saved.blocks[layer];
      auto buffer = read_block(index, layer);
      if (!buffer) return pass(buffer);
      if (!(old_layers[layer] == new_layers[layer])) {
        buffer = reencoded(*buffer, old_layers[layer], new_layers[layer]);
        if (!buffer) return pass(buffer);
      }
      cells.push_back(std::move(*buffer));
      layouts[layer] = cell_layout(new_layers[layer]);
      View view;
      view.base = cells.back().data();
      view.cells = std::span(numbers).first(block_cells(block, saved.length()));
      view.layout = &layouts[layer];
      view.first = block.first;
      view.count = *length - block.first;
      view.kept = block.kept;
      view.span = new_layers[layer].span;
      views.push_back(view);
    }
    return cache.restore(*length, views);
  } catch (const std::bad_alloc&) {
    return no_memory(path());
  }
}

}  // namespace stet::kv
