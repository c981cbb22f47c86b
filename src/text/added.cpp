#include "text/added.hpp"

#include <algorithm>

namespace stet::text {

AddedFinder::AddedFinder(const std::vector<AddedToken>& tokens, const std::function<bool(const AddedToken&)>& wanted) {
  for (const AddedToken& token : tokens) {
    if (!wanted(token)) continue;
    tokens_.push_back(&token);
    lengths_.push_back(token.text.size());
    begins_[static_cast<unsigned char>(token.text[0])] = true;
  }
  std::sort(lengths_.begin(), lengths_.end(), std::greater<>());
  lengths_.erase(std::unique(lengths_.begin(), lengths_.end()), lengths_.end());
}

std::optional<AddedFinder::Hit> AddedFinder::find(std::string_view text, std::size_t from) const noexcept {
  if (tokens_.empty()) return std::nullopt;
  for (std::size_t at = from; at < text.size(); ++at) {
    if (!begins_[static_cast<unsigned char>(text[at])]) continue;
    for (const std::size_t length : lengths_) {
      if (length > text.size() - at) continue;
      const std::string_view here = text.substr(at, length);
      const auto found = std::lower_bound(tokens_.begin(), tokens_.end(), here,
                                          [](const AddedToken* token, std::string_view t) { return token->text < t; });
      if (found != tokens_.end() && (*found)->text == here) return Hit{at, at + length, (*found)->id};
    }
  }
  return std::nullopt;
}

}  // namespace stet::text
