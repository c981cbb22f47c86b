// stet::make_cache for tests that plant failures.
#pragma once

#include "kv/allocator.hpp"
#include "stet/cache.hpp"

namespace stet::kv {

/// stet::make_cache with memory from `allocate`. Generations of handles start at `first_generation`.
Result<std::unique_ptr<Cache>> make_cache(const CacheSpec& spec, const CacheOptions& options, AllocateFn allocate,
                                          std::uint32_t first_generation = 1);

}  // namespace stet::kv
