#include "stet/cache.hpp"

#include <new>

#include "kv/contiguous.hpp"
#include "kv/growing.hpp"
#include "kv/make_cache.hpp"
#include "kv/paged.hpp"

namespace stet {

const char* name_of(Layout layout) noexcept {
  switch (layout) {
    case Layout::contiguous:
      return "contiguous";
    case Layout::growing:
      return "growing";
    case Layout::paged:
      break;
  }
  return "paged";
}

namespace kv {

Result<std::unique_ptr<Cache>> make_cache(const CacheSpec& spec, const CacheOptions& options, AllocateFn allocate,
                                          std::uint32_t first_generation) {
  const auto plan = plan_cache(spec, options);
  if (!plan) return pass(plan);
  try {
    Allocator allocator(std::move(allocate));
    auto tables = make_tables(spec, options, first_generation, allocator);
    if (!tables) return pass(tables);
    const Made made{spec, options, *plan};
    if (options.layout == Layout::contiguous) {
      return std::make_unique<Contiguous>(made, std::move(*tables), allocator.handed_out());
    }
    if (options.layout == Layout::growing) {
      return std::make_unique<Growing>(made, std::move(*tables), allocator.handed_out());
    }
    auto pages = make_page_tables(spec, options, tables->groups.all(), allocator);
    if (!pages) return pass(pages);
    return std::make_unique<Paged>(made, std::move(*tables), std::move(*pages), allocator.handed_out());
  } catch (const std::bad_alloc&) {
    return fail(Code::capacity, "cache: the system refused memory for the cache's own description");
  }
}

}  // namespace kv

Result<std::unique_ptr<Cache>> make_cache(const CacheSpec& spec, const CacheOptions& options) {
  return kv::make_cache(spec, options, base::Buffer::allocate);
}

}  // namespace stet
