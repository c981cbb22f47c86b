#include "lab/words.hpp"

#include <fmt/ranges.h>

namespace stet::lab {

std::string ids_text(const std::vector<TokenId>& ids) {
  return fmt::format("{}", fmt::join(ids, " "));
}

std::string text_or_ids(const std::optional<std::string>& text, const std::vector<TokenId>& ids) {
  return text ? *text : ids_text(ids);
}

std::string in_one_line(const std::string& text) {
  std::string line;
  for (const char c : text) {
    if (c == '\n') {
      line += "\\n";
    } else {
      line += c;
    }
  }
  return line;
}

}  // namespace stet::lab
