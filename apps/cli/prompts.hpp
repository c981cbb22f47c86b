// --prompts: requests from a JSONL file.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "json.hpp"
#include "stet/engine.hpp"

namespace stet::cli {

/// One line of the file.
struct PromptLine {
  std::string where;                // "FILE:LINE"
  std::optional<std::string> text;  // else request.prompt holds the ids
  Request request;                  // the flags, with this line's fields over them
  Json id;                          // copied to the result; null if absent
};

/// Reads all lines; blank ones are skipped. The n-th request has sequence n, from 0, unless it names one itself. Errors
/// name file and line. `name` is the file's, `defaults` come from the flags.
Result<std::vector<PromptLine>> read_prompts(std::string_view content, const std::string& name,
                                             const Request& defaults);

}  // namespace stet::cli
