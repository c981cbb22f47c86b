// What is a character in a string of bytes, and how to show any bytes in one line.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace stet::text {

/// Bytes of the well-formed UTF-8 sequence that `text` starts with (Unicode Standard, table 3-7); 0 when it starts with
/// none. A byte that starts none, read from the left, is what this room calls an invalid byte.
std::size_t sequence_length(std::string_view text) noexcept;

/// Whether all of `text` is the beginning of a well-formed sequence that more bytes could complete.
bool is_cut_off(std::string_view text) noexcept;

/// The code point of a sequence that sequence_length accepted, `text` being exactly that sequence.
char32_t code_point(std::string_view text) noexcept;

/// `code` (at most U+10FFFF) as UTF-8.
std::string to_utf8(char32_t code);

/// `text` in quotes for an error message: control characters and invalid bytes as \xNN, cut after 60 bytes.
std::string in_quotes(std::string_view text);

}  // namespace stet::text
