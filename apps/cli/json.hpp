// JSON as docs/json.md describes it: every object carries "schema", fields are only ever added.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "stet/result.hpp"

namespace stet::cli {

using Json = nlohmann::ordered_json;

inline constexpr int kSchema = 1;

/// One line. Bytes that are not UTF-8 become U+FFFD, so the result is valid JSON whatever the strings hold.
std::string dump(const Json& json);

/// Sets `key`, and `key`_hex with the exact bytes if they are not valid UTF-8.
void set_text(Json& json, std::string_view text, const std::string& key = "text");

/// Parses one JSON value; the error says where, without the library's decoration. `name` begins it.
Result<Json> parse_json(std::string_view text, const std::string& name);

}  // namespace stet::cli
