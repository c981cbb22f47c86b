#include "text/utf8.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace stet::text {
namespace {

/// What a lead byte promises: the length, and the range of the second byte, which alone excludes overlong forms,
/// surrogates and code points beyond U+10FFFF.
struct Lead {
  std::size_t length = 0;
  unsigned char low = 0x80, high = 0xbf;
};

Lead lead_of(unsigned char byte) noexcept {
  if (byte < 0x80) return {1};
  if (byte < 0xc2) return {0};
  if (byte < 0xe0) return {2};
  if (byte == 0xe0) return {3, 0xa0, 0xbf};
  if (byte == 0xed) return {3, 0x80, 0x9f};
  if (byte < 0xf0) return {3};
  if (byte == 0xf0) return {4, 0x90, 0xbf};
  if (byte < 0xf4) return {4};
  if (byte == 0xf4) return {4, 0x80, 0x8f};
  return {0};
}

/// How many leading bytes of `text` fit one sequence of the length that its lead byte promises.
std::size_t fitting(std::string_view text, const Lead& lead) noexcept {
  const std::size_t most = std::min(text.size(), lead.length);
  std::size_t n = std::min<std::size_t>(most, 1);
  for (; n < most; ++n) {
    const auto byte = static_cast<unsigned char>(text[n]);
    const unsigned char low = n == 1 ? lead.low : 0x80;
    const unsigned char high = n == 1 ? lead.high : 0xbf;
    if (byte < low || byte > high) break;
  }
  return n;
}

/// Characters that would break the line or drive a terminal.
bool is_unprintable(char32_t code) noexcept {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x2028 || code == 0x2029;
}

}  // namespace

std::size_t sequence_length(std::string_view text) noexcept {
  if (text.empty()) return 0;
  const Lead lead = lead_of(static_cast<unsigned char>(text[0]));
  return fitting(text, lead) == lead.length ? lead.length : 0;
}

bool is_cut_off(std::string_view text) noexcept {
  if (text.empty()) return false;
  const Lead lead = lead_of(static_cast<unsigned char>(text[0]));
  return text.size() < lead.length && fitting(text, lead) == text.size();
}

char32_t code_point(std::string_view text) noexcept {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (text.size() == 1) return lead;
  char32_t code = lead & (0x7fU >> text.size());
  for (const char c : text.substr(1)) code = code << 6 | (static_cast<unsigned char>(c) & 0x3fU);
  return code;
}

std::string to_utf8(char32_t code) {
  const auto tail = [code](int shift) { return static_cast<char>(0x80U | (code >> shift & 0x3fU)); };
  if (code < 0x80) return {static_cast<char>(code)};
  if (code < 0x800) return {static_cast<char>(0xc0U | code >> 6), tail(0)};
  if (code < 0x10000) return {static_cast<char>(0xe0U | code >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xf0U | code >> 18), tail(12), tail(6), tail(0)};
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kMost = 60;
  std::string out = "\"";
  for (std::size_t at = 0; at < text.size();) {
    if (at >= kMost) return out + "\"...";
    const std::size_t length = sequence_length(text.substr(at));
    const std::string_view sequence = text.substr(at, std::max<std::size_t>(length, 1));
    if (length == 0 || is_unprintable(code_point(sequence))) {
      for (const char c : sequence) fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += sequence;
    }
    at += sequence.size();
  }
  return out + "\"";
}

}  // namespace stet::text
