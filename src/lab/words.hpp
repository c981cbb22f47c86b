// Texts and ids as reports write them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "stet/types.hpp"

namespace stet::lab {

/// "12 7 30".
std::string ids_text(const std::vector<TokenId>& ids);

/// The text, or the ids where no tokenizer made one of them.
std::string text_or_ids(const std::optional<std::string>& text, const std::vector<TokenId>& ids);

/// However the model broke it: line feeds as "\n".
std::string in_one_line(const std::string& text);

}  // namespace stet::lab
