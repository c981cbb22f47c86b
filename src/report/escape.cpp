#include "report/escape.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace stet::report {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct Decoded {
  char32_t code = 0;
  std::size_t bytes = 1;
  bool valid = false;  // if not, the bytes are to be replaced by one U+FFFD
};

// RFC 3629: no surrogates, no overlong forms, nothing above U+10FFFF. Not the two code points that XML forbids, either.
Decoded decode(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {first, 1, true};
  const std::size_t bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4) return {};
  char32_t code = first & (0xFFU >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if (i >= text.size() || (byte(i) & 0xC0U) != 0x80U) return {0, i, false};
    code = code << 6U | (byte(i) & 0x3FU);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  const bool forbidden = code == 0xFFFE || code == 0xFFFF;
  return {code, bytes, code >= kLeast[bytes] && code <= 0x10FFFF && !surrogate && !forbidden};
}

bool is_control(char32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0);
}

const char* entity_of(char32_t code) {
  switch (code) {
    case U'&':
      return "&amp;";
    case U'<':
      return "&lt;";
    case U'>':
      return "&gt;";
    case U'"':
      return "&quot;";
    case U'\'':
      return "&#39;";
    default:
      return nullptr;
  }
}

std::string safe(std::string_view text, bool keep_layout, bool entities) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Decoded at = decode(text);
    const bool layout = keep_layout && (at.code == U'\n' || at.code == U'\t');
    const char* entity = entities && at.valid ? entity_of(at.code) : nullptr;
    if (!at.valid) {
      out += kReplacement;
    } else if (entity != nullptr) {
      out += entity;
    } else if (is_control(at.code) && !layout) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned>(at.code));
    } else {
      out += text.substr(0, at.bytes);
    }
    text.remove_prefix(at.bytes);
  }
  return out;
}

}  // namespace

std::string html_of(std::string_view text, bool keep_layout) {
  return safe(text, keep_layout, true);
}

std::string line_of(std::string_view text) {
  return safe(text, false, false);
}

std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

}  // namespace stet::report
