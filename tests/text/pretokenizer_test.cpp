#include "text/pretokenizer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace stet::text {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> pieces(std::string_view text) {
  const auto ends = PreTokenizer::make().value().split(text).value();
  std::vector<std::string> parts;
  std::size_t at = 0;
  for (const std::size_t end : ends) {
    parts.emplace_back(text.substr(at, end - at));
    at = end;
  }
  EXPECT_EQ(at, text.size());
  return parts;
}

TEST(PreTokenizer, WordsNumbersAndSigns) {
  EXPECT_THAT(pieces(""), ElementsAre());
  EXPECT_THAT(pieces("Hello world 42, ok!?"), ElementsAre("Hello", " world", " 42", ",", " ok", "!?"));
  EXPECT_THAT(pieces("abc123def"), ElementsAre("abc", "123", "def"));
  EXPECT_THAT(pieces("na\u00efve \u6f22\u5b57 \u0663\u00bd"),
              ElementsAre("na\u00efve", " \u6f22\u5b57", " \u0663\u00bd"));
  EXPECT_THAT(pieces("e\u0301"), ElementsAre("e", "\u0301"));  // a combining mark is no letter
}

TEST(PreTokenizer, Contractions) {
  EXPECT_THAT(pieces("I'll don't we've it's"), ElementsAre("I", "'ll", " don", "'t", " we", "'ve", " it", "'s"));
  EXPECT_THAT(pieces("'re'm'd"), ElementsAre("'re", "'m", "'d"));
  EXPECT_THAT(pieces("'S 's 'x"),
              ElementsAre("'", "S", " '", "s", " '", "x"));  // lower case only, and not after a space
}

TEST(PreTokenizer, SpaceBeforeAWordIsTheLastOfARun) {
  EXPECT_THAT(pieces("a   b"), ElementsAre("a", "  ", " b"));
  EXPECT_THAT(pieces("a \n b"), ElementsAre("a", " \n", " b"));
  EXPECT_THAT(pieces("a\n\nb"), ElementsAre("a", "\n", "\n", "b"));
  EXPECT_THAT(pieces("a  "), ElementsAre("a", "  "));
  EXPECT_THAT(pieces("  \t"), ElementsAre("  \t"));
}

// PropList.txt: White_Space. A space of the list joins the run before it and leaves the word behind it alone.
TEST(PreTokenizer, WhiteSpaceIsUnicodes) {
  for (const char* space : {"\t", "\n", "\v", "\f", "\r", " ", "\u0085", "\u00a0", "\u1680", "\u2000", "\u2005",
                            "\u200a", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"}) {
    EXPECT_THAT(pieces(std::string("!") + space + space), ElementsAre("!", std::string(space) + space)) << space;
  }
  for (const char* other : {"\x1c", "\x1d", "\x1e", "\x1f", "\u180e", "\u200b", "\u2060", "\ufeff"}) {
    EXPECT_THAT(pieces(std::string("! ") + other), ElementsAre("!", std::string(" ") + other)) << other;
    EXPECT_THAT(pieces(std::string("!") + other), ElementsAre(std::string("!") + other)) << other;
  }
  EXPECT_THAT(pieces(std::string("a\0b", 3)), ElementsAre("a", std::string(1, '\0'), "b"));
}

TEST(PreTokenizer, AnInvalidByteIsASign) {
  EXPECT_THAT(pieces("a\xff\xfe!b"), ElementsAre("a", "\xff\xfe!", "b"));
  EXPECT_THAT(pieces("a \xff z"), ElementsAre("a", " \xff", " z"));
  EXPECT_THAT(pieces("a  \xff"), ElementsAre("a", " ", " \xff"));
  EXPECT_THAT(pieces("\xc3\xa9\xc3"), ElementsAre("\xc3\xa9", "\xc3"));  // a letter, then half of one
  EXPECT_THAT(pieces("\xe2\x82"
                     "a"),
              ElementsAre("\xe2\x82", "a"));
  EXPECT_THAT(pieces("\xed\xa0\x80"), ElementsAre("\xed\xa0\x80"));  // a surrogate
  EXPECT_THAT(pieces("1\xc0\xb1"
                     "1"),
              ElementsAre("1", "\xc0\xb1", "1"));  // an overlong digit
  EXPECT_THAT(pieces("\xf0\x9f\x98\xf0\x9f\x98\x80"), ElementsAre("\xf0\x9f\x98\xf0\x9f\x98\x80"));
}

// Runs that need no cut must not exhaust a stack or a limit of PCRE2, and must not take quadratic time (hours here).
TEST(PreTokenizer, LongRuns) {
  const std::size_t n = 1000000;
  EXPECT_EQ(pieces(std::string(n, 'a')).size(), 1U);
  EXPECT_EQ(pieces(std::string(n, '7')).size(), 1U);
  EXPECT_EQ(pieces(std::string(n, '!')).size(), 1U);
  EXPECT_EQ(pieces(std::string(n, ' ')).size(), 1U);
  EXPECT_EQ(pieces(std::string(n, '\xff')).size(), 1U);
  EXPECT_THAT(pieces(std::string(n, ' ') + "x"), ElementsAre(std::string(n - 1, ' '), " x"));
  EXPECT_THAT(pieces(std::string(n, '\n') + "x"), ElementsAre(std::string(n - 1, '\n'), "\n", "x"));
  std::string alternating;
  for (std::size_t i = 0; i < n; ++i) alternating += i % 2 == 0 ? "\u3000" : "\u6f22";
  EXPECT_EQ(pieces(alternating).size(), n);
}

TEST(PreTokenizer, NamesItsUnicodeVersion) {
  EXPECT_THAT(unicode_version(), ::testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
}

}  // namespace
}  // namespace stet::text
