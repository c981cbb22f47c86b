// Contiguous storage: each sequence slot owns room for max_len tokens, layer after layer. It keeps every row: a window
// is only a mask here, which makes this layout the oracle for those that drop rows.
#pragma once

#include <cstdint>
#include <memory>

#include "kv/allocator.hpp"
#include "stet/cache.hpp"

namespace stet::kv {

/// The cache of a spec and options that plan_cache accepted. Everything it keeps comes from `allocator`, except its
/// copy of the spec and the fixed-size Step handles. Generations of handles start at `first_generation`, which only
/// tests choose.
Result<std::unique_ptr<Cache>> make_contiguous(const CacheSpec& spec, const CacheOptions& options,
                                               const CachePlan& plan, Allocator allocator,
                                               std::uint32_t first_generation = 1);

}  // namespace stet::kv
