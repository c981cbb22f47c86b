// The bytes of a snapshot file before its cells (docs/kv_format.md): header and tables, written and read. Reading is
// hostile-input code: nothing is allocated or computed from a number that was not checked.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.hpp"
#include "kv/identity.hpp"
#include "stet/cache.hpp"
#include "stet/result.hpp"
#include "stet/types.hpp"

namespace stet::kv {

inline constexpr std::size_t kHeaderBytes = 64;
inline constexpr std::uint32_t kFormatVersion = 1;
inline constexpr std::uint64_t kMostTableBytes = std::uint64_t{1} << 30;

/// The rows of one sequence and layer: positions [0, kept) and [first, length), as View has them.
struct SavedBlock {
  Pos kept = 0, first = 0;
  std::uint64_t offset = 0;  // in the file; a multiple of 64
  base::Digest digest;       // of the block's bytes
  friend bool operator==(const SavedBlock&, const SavedBlock&) = default;
};

struct SavedSequence {
  std::string salt;
  std::vector<TokenId> tokens;     // as many as rows of a layer without a window
  std::vector<SavedBlock> blocks;  // one a layer
  Pos length() const noexcept { return static_cast<Pos>(tokens.size()); }
};

struct SnapshotTables {
  Identity identity;
  CacheSpec layers;
  std::vector<SavedSequence> sequences;
};

/// Cells of a block, in the order of their positions.
std::size_t block_cells(const SavedBlock& block, Pos length) noexcept;
/// The bytes of a block; saturates.
std::uint64_t block_bytes(const LayerSpec& layer, const SavedBlock& block, Pos length) noexcept;

struct SnapshotHeader {
  std::uint64_t file_bytes = 0, table_bytes = 0;
  base::Digest tables;
};

std::array<std::byte, kHeaderBytes> header_bytes(const SnapshotHeader& header);
/// From the first bytes of a file, all there are up to kHeaderBytes. Code::corrupt and Code::unsupported name `where`.
Result<SnapshotHeader> parse_header(std::span<const std::byte> bytes, std::string_view where);

/// Identity and layers as they stand in the tables.
std::vector<std::byte> identity_bytes(const Identity& identity, const CacheSpec& layers);
/// All tables, padded to a multiple of 64.
std::vector<std::byte> table_bytes(const SnapshotTables& tables);
/// The tables of a file of `file_bytes`, from all their bytes. Everything in the result fits together and the file.
/// Code::corrupt names `where` and the offset in the file.
Result<SnapshotTables> parse_tables(std::span<const std::byte> bytes, std::uint64_t file_bytes, std::string_view where);

}  // namespace stet::kv
