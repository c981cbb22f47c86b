// JSON from files that may be hostile.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "stet/result.hpp"

namespace stet::text {

/// The text of a file, and what errors call it.
struct Document {
  std::string name, text;
};

/// Parses a document whose top is an object. Code::corrupt names line and column of what is not JSON, or the key that
/// an object has twice; or says that it is nested deeper than 64 or has more than 4 million values (memory grows with
/// these, not with the file).
Result<nlohmann::json> parse_object(const Document& document);

}  // namespace stet::text
