// Cuts text into the pieces within which byte pairs are merged.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "stet/result.hpp"

namespace stet::text {

/// GPT-2's pattern (openai/gpt-2 encoder.py), with PyPI `regex`'s meaning of its classes:
///
///     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
///
/// \s is Unicode's White_Space, which PCRE2's own \s is not (that one has U+180E, which left White_Space in
/// Unicode 6.3). \p{L} and \p{N} follow the Unicode version of the PCRE2 library, see unicode_version(); letters and
/// digits assigned later count as neither.
///
/// An invalid byte of UTF-8 counts as a character that is neither space, letter nor digit, as it does in the reference
/// when Python decodes with errors="surrogateescape": it joins the punctuation around it.
///
/// Immutable: any number of threads may use one.
class PreTokenizer {
 public:
  /// Code::capacity when memory is short.
  static Result<PreTokenizer> make();

  /// Where each piece ends, in order: the pieces are not empty and cover `text`. Takes time and memory linear in its
  /// size.
  Result<std::vector<std::size_t>> split(std::string_view text) const;

 private:
  struct Pattern;
  explicit PreTokenizer(std::shared_ptr<const Pattern> pattern) noexcept;
  std::shared_ptr<const Pattern> pattern_;
};

/// As PCRE2 states it ("14.0.0").
std::string unicode_version();

}  // namespace stet::text
