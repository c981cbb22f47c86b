// Finds tokens that are spelled out in a text.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "text/vocabulary.hpp"

namespace stet::text {

/// Leftmost first, and of those that begin there the longest, as Hugging Face's tokenizers do.
class AddedFinder {
 public:
  struct Hit {
    std::size_t begin = 0, end = 0;
    TokenId id = kNoToken;
  };

  /// Looks for those of `tokens` (sorted by text, kept alive by the caller) that `wanted` accepts.
  AddedFinder(const std::vector<AddedToken>& tokens, const std::function<bool(const AddedToken&)>& wanted);

  /// The first one at or after `from`.
  std::optional<Hit> find(std::string_view text, std::size_t from) const noexcept;

 private:
  std::vector<const AddedToken*> tokens_;  // sorted by text
  std::vector<std::size_t> lengths_;       // that occur, longest first
  std::array<bool, 256> begins_{};         // whether one begins with this byte
};

}  // namespace stet::text
