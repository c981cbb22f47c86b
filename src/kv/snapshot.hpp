// Sequences of a cache in a file, and back into any cache of the same model (docs/kv_format.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "base/buffer.hpp"
#include "base/file.hpp"
#include "kv/identity.hpp"
#include "kv/snapshot_tables.hpp"
#include "stet/cache.hpp"
#include "stet/result.hpp"
#include "stet/types.hpp"

namespace stet::kv {

/// A sequence to save: its handle, the tokens whose rows it holds, and whose they are.
struct SaveSequence {
  Seq seq;
  std::span<const TokenId> tokens;
  std::string_view salt;
};

/// Writes all `sequences` into one file that takes `path`'s place at once (base::NewFile): on any error the old file is
/// as it was. The same sequences, as far back as they can be restored, give the same bytes whatever layout and page
/// size they lie in. `stop` is asked now and then and makes it give up (Code::interrupted). Code::not_found and
/// Code::invalid_argument name a sequence that is not open or has not as many rows as tokens; Code::io what the system
/// refused. The cache is only read.
Result<void> save(const std::filesystem::path& path, const Identity& identity, const Cache& cache,
                  std::span<const SaveSequence> sequences, const std::function<bool()>& stop = {});

/// Whether rows may be stored again in another codec than the file's: what they then hold is not what the model stored.
enum class Reencode : std::uint8_t { refused, allowed };

struct RestoreOptions {
  Reencode reencode = Reencode::refused;
  std::optional<Pos> upto;  // only the first tokens; default: all
};

/// A snapshot file that was opened: header and tables are read and checked; cells are read, and checked against their
/// digests, when they are used.
class Snapshot {
 public:
  /// Code::corrupt (damaged, cut short, or not such a file) and Code::unsupported (another format version) name the
  /// file, and the section and offset; Code::not_found and Code::io as base::File.
  static Result<Snapshot> open(const std::filesystem::path& path);

  const std::filesystem::path& path() const noexcept { return file_.path(); }
  std::uint64_t bytes() const noexcept { return file_.size(); }
  const Identity& identity() const noexcept { return tables_.identity; }
  const CacheSpec& layers() const noexcept { return tables_.layers; }
  std::span<const SavedSequence> sequences() const noexcept { return tables_.sequences; }

  /// Reads all cells and compares their digests.
  Result<void> verify() const;

  /// A new sequence of the cache with the rows of sequence `index`. Code::invalid_argument names what of the identity
  /// or the layers differs, or the row that `upto` would need; Code::corrupt the damaged layer; Code::capacity and
  /// Code::exhausted as Cache::restore. After an error the cache is as it was.
  Result<Seq> restore(std::size_t index, const Identity& model, Cache& cache, const RestoreOptions& options = {}) const;

 private:
  Snapshot(base::File file, SnapshotTables tables) : file_(std::move(file)), tables_(std::move(tables)) {}
  Result<Pos> check(std::size_t index, const Identity& model, const Cache& cache, const RestoreOptions& options) const;
  Result<base::Buffer> read_block(std::size_t sequence, std::size_t layer) const;
  Failure damaged(std::size_t sequence, std::size_t layer) const;

  base::File file_;
  SnapshotTables tables_;
};

}  // namespace stet::kv
