#include "text/utf8.hpp"

#include <gtest/gtest.h>

#include <string>

#include "text/alphabet.hpp"

namespace stet::text {
namespace {

TEST(Utf8, EveryCodePointIsOneSequenceAndBackAgain) {
  for (char32_t code = 0; code <= 0x10ffff; ++code) {
    if (code >= 0xd800 && code < 0xe000) continue;
    const std::string text = to_utf8(code);
    ASSERT_EQ(sequence_length(text), text.size()) << std::hex << static_cast<unsigned>(code);
    ASSERT_EQ(sequence_length(text + "\x80"), text.size());
    ASSERT_EQ(code_point(text), code);
    ASSERT_FALSE(is_cut_off(text));
    for (std::size_t n = 1; n < text.size(); ++n) {
      ASSERT_EQ(sequence_length(text.substr(0, n)), 0U);
      ASSERT_TRUE(is_cut_off(text.substr(0, n)));
    }
  }
}

// The well-formed sequences of up to three bytes are exactly the code points below U+10000 without the surrogates.
TEST(Utf8, CountsOfWellFormedSequences) {
  int two = 0;
  int three = 0;
  for (int a = 0x80; a < 0x100; ++a) {
    for (int b = 0; b < 0x100; ++b) {
      const std::string pair = {static_cast<char>(a), static_cast<char>(b)};
      two += sequence_length(pair) == 2 ? 1 : 0;
      for (int c = 0; c < 0x100; ++c) three += sequence_length(pair + static_cast<char>(c)) == 3 ? 1 : 0;
    }
  }
  EXPECT_EQ(two, 0x800 - 0x80);
  EXPECT_EQ(three, 0x10000 - 0x800 - 0x800);
}

TEST(Utf8, IllFormed) {
  for (const char* text : {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
                           "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xc3(", "\xe2\x82(", "\xf0\x9f\x98("}) {
    EXPECT_EQ(sequence_length(text), 0U) << in_quotes(text);
    EXPECT_FALSE(is_cut_off(text)) << in_quotes(text);
  }
  EXPECT_EQ(sequence_length(""), 0U);
  EXPECT_FALSE(is_cut_off(""));
}

TEST(Utf8, QuotesAreOnePrintableLine) {
  EXPECT_EQ(in_quotes("a\n\x1b[31m\x7f"), "\"a\\x0a\\x1b[31m\\x7f\"");
  EXPECT_EQ(in_quotes("\xc3\xa9\xff"), "\"\xc3\xa9\\xff\"");
  EXPECT_EQ(in_quotes("\xe2\x80\xa8\xc2\x85"), "\"\\xe2\\x80\\xa8\\xc2\\x85\"");
  EXPECT_EQ(in_quotes(std::string(100, 'a')), "\"" + std::string(60, 'a') + "\"...");
}

// Spot checks against openai/gpt-2's vocabulary file, where these letters occur.
TEST(Alphabet, Letters) {
  EXPECT_EQ(letters_of(" the\n"), "\u0120the\u010a");
  EXPECT_EQ(letters_of("\xc3\xa9"), "\u00c3\u00a9");
  EXPECT_EQ(letters_of(std::string_view("\0\x7f\xa0\xad\xff", 5)), "\u0100\u0121\u0142\u0143\u00ff");
}

TEST(Alphabet, IsABijection) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  EXPECT_EQ(bytes_of(letters_of(all)), all);
  for (char32_t code = 0; code < 0x300; ++code) {
    const auto bytes = bytes_of(to_utf8(code));
    const bool is_letter = (code >= 0x21 && code < 0x7f) || (code >= 0xa1 && code < 0x144 && code != 0xad);
    EXPECT_EQ(bytes.has_value(), is_letter) << static_cast<unsigned>(code);
  }
  EXPECT_EQ(bytes_of("a\xff"), std::nullopt);
  EXPECT_EQ(bytes_of("a\xf0\x9f\x98\x80"), std::nullopt);
  EXPECT_EQ(bytes_of(""), "");
}

}  // namespace
}  // namespace stet::text
