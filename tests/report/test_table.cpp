#include <gtest/gtest.h>

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

}  // namespace
}  // namespace stet::report
