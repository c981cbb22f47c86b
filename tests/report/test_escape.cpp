// What models write goes into pages: nothing of it may act there.
#include "report/escape.hpp"

#include <gtest/gtest.h>

#include "report/report.hpp"

namespace stet::report {
namespace {

TEST(Escape, MarkupIsText) {
  EXPECT_EQ(html_of("<script>alert(\"a\" & 'b')</script>"),
            "&lt;script&gt;alert(&quot;a&quot; &amp; &#39;b&#39;)&lt;/script&gt;");
  EXPECT_EQ(html_of("&amp;"), "&amp;amp;");
  EXPECT_EQ(html_of(""), "");
}

TEST(Escape, ControlCharactersAreSpelledOut) {
  EXPECT_EQ(html_of("a\x1b[31mb\x7f"), "a\\x1b[31mb\\x7f");
  EXPECT_EQ(html_of(std::string("\0", 1)), "\\x00");
  EXPECT_EQ(html_of("a\r\nb\tc"), "a\\x0d\\x0ab\\x09c");
  EXPECT_EQ(html_of("a\r\nb\tc", true), "a\\x0d\nb\tc");
  EXPECT_EQ(html_of("\xC2\x9B"), "\\x9b");  // CSI in one code point
  EXPECT_EQ(line_of("<a>\n"), "<a>\\x0a");
}

TEST(Escape, OnlyValidUtf8Comes) {
  const std::string no = "\xEF\xBF\xBD";
  EXPECT_EQ(html_of("größer → 日本 \xF0\x9F\x99\x82"), "größer → 日本 \xF0\x9F\x99\x82");
  EXPECT_EQ(html_of("a\xFF"
                    "b"),
            "a" + no + "b");
  EXPECT_EQ(html_of("\xC3<"), no + "&lt;");                 // a lead byte does not swallow what follows
  EXPECT_EQ(html_of("\xE2\x82"), no);                       // cut off
  EXPECT_EQ(html_of("\xC0\xBC"), no + no);                  // overlong <
  EXPECT_EQ(html_of("\xE0\x80\xBC"), no);                   // the same in three bytes
  EXPECT_EQ(html_of("\xED\xA0\x80"), no);                   // a surrogate
  EXPECT_EQ(html_of("\xF4\x90\x80\x80"), no);               // above U+10FFFF
  EXPECT_EQ(html_of("\xEF\xBF\xBE\xEF\xBF\xBF"), no + no);  // XML has none of these two
}

TEST(Escape, EveryByteAndPairOfBytesComesOutSafe) {
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      const std::string text = html_of(std::string{static_cast<char>(a), static_cast<char>(b)});
      EXPECT_EQ(text.find_first_of("<>\"'"), std::string::npos) << a << ' ' << b;
      for (const char c : text) EXPECT_FALSE(static_cast<unsigned char>(c) < 0x20 || c == 0x7F) << a << ' ' << b;
      EXPECT_EQ(line_of(line_of(text)), line_of(text)) << a << ' ' << b;  // valid already
    }
  }
}

}  // namespace
}  // namespace stet::report
