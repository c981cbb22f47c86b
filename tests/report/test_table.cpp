#include <gtest/gtest.h>

#include <limits>

#include "report/report.hpp"

namespace stet::report {
namespace {

Table small() {
  Table table;
  table.title = "Steps";
  table.columns = {{"what", "what", true}, {"ms", "ms"}};
  table.rows = {{"größer", number(1.0 / 3, 2)}, {"a,\"b\"", number(12, 1)}, {"none", {}}};
  return table;
}

TEST(Table, DigitsAreGroupedByThousands) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(131072), "131,072");
  EXPECT_EQ(grouped(-999), "-999");
  EXPECT_EQ(grouped(-1234567), "-1,234,567");
  EXPECT_EQ(grouped(std::numeric_limits<std::int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(Table, TextIsAlignedByCodePoints) {
  EXPECT_EQ(text_of(small()),
            "Steps\n"
            "what      ms\n"
            "größer  0.33\n"
            "a,\"b\"   12.0\n"
            "none\n");
}

TEST(Table, CsvHasWholeValuesAndQuotesWhatNeedsIt) {
  EXPECT_EQ(csv_of(small()),
            "what,ms\r\n"
            "größer,0.3333333333333333\r\n"
            "\"a,\"\"b\"\"\",12\r\n"
            "none,\r\n");
}

TEST(Table, LongNotesAreBrokenAtSpaces) {
  Table table = small();
  table.note = "First line.\n";
  for (int i = 0; i < 30; ++i) table.note += "word " + std::string(i == 7 ? 200 : 4, 'x') + ' ';
  const std::string text = text_of(table);
  const std::string note = text.substr(text.find("First"));
  EXPECT_TRUE(note.starts_with("First line.\nword xxxx word"));
  std::string joined, line;
  for (const char c : note) {
    line += c;
    if (c != '\n') continue;
    EXPECT_TRUE(line.size() <= 101 || line == std::string(200, 'x') + '\n') << line;
    joined += line.substr(0, line.size() - 1) + ' ';
    line.clear();
  }
  EXPECT_EQ(line, "");
  EXPECT_EQ(joined, "First line. " + table.note.substr(table.note.find('\n') + 1));
}

}  // namespace
}  // namespace stet::report
