// A whole prefix index in one file, and back.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>

#include "kv/prefix_index.hpp"
#include "kv/snapshot.hpp"
#include "stet/result.hpp"

namespace stet::kv {

/// All parked sequences, least recently used first. Errors as of save.
Result<void> save_index(const std::filesystem::path& path, const Identity& identity, const Cache& cache,
                        const PrefixIndex& index, const std::function<bool()>& stop = {});

/// Restores the sequences of a file into the cache and parks them, the order of their last use kept; returns how many.
/// Where the cache has no room for all, the most recently used ones. Any other error (Snapshot::restore) leaves cache
/// and index as they were; one that says that the file is of another model is also remembered, so that lookups of its
/// tokens say different_identity.
Result<std::size_t> restore_index(const Snapshot& snapshot, const Identity& model, Cache& cache, PrefixIndex& index,
                                  Reencode reencode = Reencode::refused);

}  // namespace stet::kv
