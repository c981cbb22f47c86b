// The planner held to what caches really take: random caches are planned and made, and both numbers compared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "stet/result.hpp"

namespace stet::lab {

struct PlanSelftest {
  int planned = 0;                  // option sets
  int made = 0;                     // of them, caches that were made: those of at most 64 MiB
  int compared = 0;                 // comparisons of a plan with the plan of something larger
  std::size_t bytes = 0;            // reserved by all that were made
  std::vector<std::string> faults;  // one line each
};

/// Random layers (heads, dims, codecs, windows, sinks) under random options (layouts, pages, pools, lengths, batches).
/// Each plan must equal usage().reserved of the cache that is made, to the byte, also once its sequences are full; and
/// a longer context, more sequences or a wider codec must not cost less. Code::interrupted when `keep_going`, asked
/// before each set, answers false.
Result<PlanSelftest> plan_selftest(int sets, std::uint64_t seed, const std::function<bool(int done)>& keep_going);

}  // namespace stet::lab
