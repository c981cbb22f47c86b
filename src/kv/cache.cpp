#include "stet/cache.hpp"

#include <new>

#include "kv/contiguous.hpp"
#include "kv/make_cache.hpp"

namespace stet {
namespace kv {

Result<std::unique_ptr<Cache>> make_cache(const CacheSpec& spec, const CacheOptions& options, AllocateFn allocate) {
  const auto plan = plan_cache(spec, options);
  if (!plan) return pass(plan);
  try {
    return make_contiguous(spec, options, *plan, Allocator(std::move(allocate)));
  } catch (const std::bad_alloc&) {
    return fail(Code::capacity, "cache: the system refused memory for the cache's own description");
  }
}

}  // namespace kv

Result<std::unique_ptr<Cache>> make_cache(const CacheSpec& spec, const CacheOptions& options) {
  return kv::make_cache(spec, options, base::Buffer::allocate);
}

}  // namespace stet
