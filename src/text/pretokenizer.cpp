#include "text/pretokenizer.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <array>
#include <optional>
#include <utility>

#include "text/utf8.hpp"

namespace stet::text {
namespace {

// Unicode's White_Space (PropList.txt; unchanged since Unicode 6.3).
#define STET_SPACE \
  "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

constexpr std::string_view kPattern =
    "'s|'t|'re|'ve|'m|'ll|'d"
    "| ?\\p{L}+| ?\\p{N}+| ?[^" STET_SPACE
    "\\p{L}\\p{N}]+"
    "|[" STET_SPACE "]+(?![^" STET_SPACE "])|[" STET_SPACE "]+";

#undef STET_SPACE

/// A copy with every invalid byte replaced by a control character, which the pattern treats as the rule for invalid
/// bytes says, and which keeps every offset. Nothing when there is none to replace.
std::optional<std::string> without_invalid_bytes(std::string_view text) {
  std::optional<std::string> copy;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = sequence_length(text.substr(at));
    if (length == 0) {
      if (!copy) copy.emplace(text);
      (*copy)[at] = '\x01';
    }
    at += length == 0 ? 1 : length;
  }
  return copy;
}

std::string reason_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

template <auto Function>
struct Free {
  template <class T>
  void operator()(T* p) const noexcept {
    Function(p);
  }
};

}  // namespace

struct PreTokenizer::Pattern {
  std::unique_ptr<pcre2_code, Free<pcre2_code_free>> code;
};

PreTokenizer::PreTokenizer(std::shared_ptr<const Pattern> pattern) noexcept : pattern_(std::move(pattern)) {}

Result<PreTokenizer> PreTokenizer::make() {
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto pattern = std::make_shared<Pattern>();
  pattern->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kPattern.data()), kPattern.size(),
                                    PCRE2_UTF | PCRE2_ANCHORED, &error, &offset, nullptr));
  if (!pattern->code) return fail(Code::capacity, fmt::format("pre-tokenizer pattern: {}", reason_of(error)));
  // Where the system forbids memory that is both written and run there is no JIT; the interpreter gives the same
  // matches.
  pcre2_jit_compile(pattern->code.get(), PCRE2_JIT_COMPLETE);
  return PreTokenizer(std::move(pattern));
}

Result<std::vector<std::size_t>> PreTokenizer::split(std::string_view text) const {
  const auto copy = without_invalid_bytes(text);
  const std::string_view valid = copy ? std::string_view(*copy) : text;
  const std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>> match(
      pcre2_match_data_create_from_pattern(pattern_->code.get(), nullptr));
  if (!match) return fail(Code::capacity, "pre-tokenizer: no memory for a match");

  std::vector<std::size_t> ends;
  for (std::size_t at = 0; at < valid.size();) {
    // Unchecked, because PCRE2 would check the whole text for every piece.
    const int found = pcre2_match(pattern_->code.get(), reinterpret_cast<PCRE2_SPTR>(valid.data()), valid.size(), at,
                                  PCRE2_NO_UTF_CHECK, match.get(), nullptr);
    if (found <= 0) return fail(Code::capacity, fmt::format("pre-tokenizer: byte {}: {}", at, reason_of(found)));
    at = pcre2_get_ovector_pointer(match.get())[1];
    ends.push_back(at);
  }
  return ends;
}

std::string unicode_version() {
  std::array<char, 24> text{};  // as large as pcre2api.3 asks for
  pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, text.data());
  return text.data();
}

}  // namespace stet::text
