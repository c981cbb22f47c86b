// JSON from files that nobody vouches for. nlohmann-json keeps the last of two equal keys without a word and builds
// whatever it is given; here duplicates, deep nesting and floods of values are errors.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "stet/result.hpp"

namespace stet::weights {

/// Weight files nest to depth 3, configs rarely beyond 4.
inline constexpr std::size_t kMaxJsonDepth = 64;
/// Bounds memory, since `[0,0,...` costs 8 bytes of tree for a byte of text. A tensor takes 8 values: 131,072 of them
/// fit in a file.
inline constexpr std::size_t kMaxJsonValues = std::size_t{1} << 20;

/// The value that `text` spells. Code::corrupt when it is not UTF-8, not JSON (both name the byte, counted from 1),
/// has a key twice in one object, or goes beyond the limits above. `where` begins every error.
Result<nlohmann::json> parse_json(std::string_view text, std::string_view where);

/// A value for an error message: its JSON, printable and short; a container is "a list" or "an object".
std::string spelled(const nlohmann::json& value);

}  // namespace stet::weights
