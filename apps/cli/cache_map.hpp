// What a cache holds, for people and for programs.
#pragma once

#include <string>

#include "json.hpp"
#include "stet/engine.hpp"

namespace stet::cli {

std::string cache_map_text(const CacheReport& report);
Json cache_map_json(const CacheReport& report);

}  // namespace stet::cli
