#include "text/alphabet.hpp"

#include <array>

#include "text/utf8.hpp"

namespace stet::text {
namespace {

constexpr bool stands_for_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

struct Alphabet {
  std::array<char32_t, 256> letter{};
  std::array<short, 0x144> byte{};  // by code point; -1 for none
};

constexpr Alphabet make_alphabet() {
  Alphabet made;
  for (short& byte : made.byte) byte = -1;
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t letter = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
    made.letter[static_cast<std::size_t>(byte)] = letter;
    made.byte[letter] = static_cast<short>(byte);
  }
  return made;
}

constexpr Alphabet kAlphabet = make_alphabet();
static_assert(kAlphabet.letter[' '] == 0x120 && kAlphabet.letter[0xad] == 0x143);

}  // namespace

char32_t letter_of(unsigned char byte) noexcept {
  return kAlphabet.letter[byte];
}

std::optional<std::string> bytes_of(std::string_view letters) {
  std::string bytes;
  while (!letters.empty()) {
    const std::size_t length = sequence_length(letters);
    if (length == 0) return std::nullopt;
    const char32_t code = code_point(letters.substr(0, length));
    if (code >= kAlphabet.byte.size() || kAlphabet.byte[code] < 0) return std::nullopt;
    bytes += static_cast<char>(kAlphabet.byte[code]);
    letters.remove_prefix(length);
  }
  return bytes;
}

std::string letters_of(std::string_view bytes) {
  std::string letters;
  for (const char byte : bytes) letters += to_utf8(letter_of(static_cast<unsigned char>(byte)));
  return letters;
}

}  // namespace stet::text
