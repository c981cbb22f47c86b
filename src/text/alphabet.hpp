// GPT-2's way to write bytes as visible characters in vocabulary files (openai/gpt-2 encoder.py, bytes_to_unicode).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace stet::text {

/// The 188 bytes that Latin-1 shows as a visible character stand for themselves; the other 68, in rising order, are
/// U+0100, U+0101, ...: a space is U+0120.
char32_t letter_of(unsigned char byte) noexcept;

/// The bytes that `letters` (UTF-8) stand for; nothing when a character is none of the 256 or the UTF-8 is invalid.
std::optional<std::string> bytes_of(std::string_view letters);

/// The inverse of bytes_of.
std::string letters_of(std::string_view bytes);

}  // namespace stet::text
