#include "weights/json.hpp"

#include <gtest/gtest.h>

#include "support.hpp"
#include "weights/printable.hpp"

namespace stet::weights {
namespace {

TEST(Json, ParsesWhatTheLibraryParses) {
  const char* text = R"({"a":[1,-2,3.5,true,false,null,"\u00e9",{}],"b":{"a":{"a":[]}},"":18446744073709551615})";
  const auto value = parse_json(text, "f");
  ASSERT_TRUE(value) << value.error().message;
  EXPECT_EQ(*value, nlohmann::json::parse(text));
  for (const char* scalar : {"1", "\"x\"", "null", " [ ] "}) EXPECT_TRUE(parse_json(scalar, "f")) << scalar;
}

TEST(Json, RefusesDuplicateKeysAtAnyDepth) {
  expect_error(parse_json(R"({"a":1,"b":2,"a":1})", "f"), Code::corrupt, "f: duplicate key a");
  expect_error(parse_json(R"([{"x":{"k":[],"k":[]}}])", "f"), Code::corrupt, "f: duplicate key k");
  expect_error(parse_json(R"({"\u0061":1,"a":1})", "f"), Code::corrupt, "duplicate key a");
  EXPECT_TRUE(parse_json(R"([{"a":1},{"a":{"a":1}}])", "f"));
}

TEST(Json, RefusesDeepNesting) {
  const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(parse_json(nested(kMaxJsonDepth), "f"));
  expect_error(parse_json(nested(kMaxJsonDepth + 1), "f"), Code::corrupt, "f: JSON nested deeper than 64");
  expect_error(parse_json(std::string(5'000'000, '['), "f"), Code::corrupt, "nested deeper");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  expect_error(parse_json(objects, "f"), Code::corrupt, "nested deeper");
}

TEST(Json, RefusesAFloodOfValues) {
  std::string flood = "[0";
  while (flood.size() < 2 * kMaxJsonValues) flood += ",0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0";
  expect_error(parse_json(flood + "]", "f"), Code::corrupt, "f: more than 1048576 JSON values");
}

TEST(Json, NamesTheByteThatIsNotUtf8) {
  // A lone continuation, an overlong slash, a surrogate, beyond U+10FFFF, a lead without its continuation.
  for (const char* bad :
       {"\x80", "\xC0\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82", "\xFF", "\xF0\x8F\xBF\xBF"}) {
    expect_error(parse_json(fmt::format("[\"{}\"]", bad), "f"), Code::corrupt, "f: not UTF-8 at byte 3");
  }
  for (const char* good : {"\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80", "\xF0\x90\x80\x80",
                           "\xF4\x8F\xBF\xBF"}) {
    EXPECT_TRUE(parse_json(fmt::format("[\"{}\"]", good), "f")) << good;
  }
}

TEST(Json, NamesTheByteThatIsNotJson) {
  expect_error(parse_json("", "f"), Code::corrupt, "f: not JSON at byte 1");
  expect_error(parse_json("{\"a\":1", "f"), Code::corrupt, "f: not JSON at byte 7");
  expect_error(parse_json("{\"a\" 1}", "f"), Code::corrupt, "f: not JSON at byte 6");
  expect_error(parse_json("[1] x", "f"), Code::corrupt, "f: not JSON at byte 5");
  expect_error(parse_json("[1e999]", "f"), Code::corrupt, "number overflow");
  expect_error(parse_json(std::string_view("{}\0x", 4), "f"), Code::corrupt, "f: not JSON at byte 3: a zero byte");
  expect_error(parse_json("[NaN]", "f"), Code::corrupt, "f: not JSON at byte 2");
  expect_error(parse_json("[\"a\nb\"]", "f"), Code::corrupt, "f: not JSON at byte 4");
  expect_error(parse_json("[\"\\ud800\"]", "f"), Code::corrupt, "f: not JSON");
  expect_error(parse_json(fmt::format("[{:x>100000}", ""), "f"), Code::corrupt, "f: not JSON at byte 2");
  expect_error(parse_json(fmt::format("[\"{:x>100000}", ""), "f"), Code::corrupt, "f: not JSON at byte 100003");
}

TEST(Printable, KeepsOneShortLine) {
  EXPECT_EQ(printable("h.0.attn"), "h.0.attn");
  EXPECT_EQ(printable(std::string_view("a\0\n\x1b[31m\xC3\xA9", 10)), "a\\x00\\x0a\\x1b[31m\\xc3\\xa9");
  EXPECT_EQ(printable(std::string(1000, 'x')), std::string(120, 'x') + "...");
  EXPECT_EQ(printable(std::string(120, 'x')), std::string(120, 'x'));
}

TEST(Printable, SpellsValues) {
  EXPECT_EQ(spelled(nlohmann::json::parse("[1]")), "a list");
  EXPECT_EQ(spelled(nlohmann::json::parse("{}")), "an object");
  EXPECT_EQ(spelled(nlohmann::json::parse("\"a\\nb\"")), "\"a\\nb\"");
  EXPECT_EQ(spelled(nlohmann::json::parse("-3")), "-3");
  EXPECT_EQ(spelled(nlohmann::json::parse("null")), "null");
}

}  // namespace
}  // namespace stet::weights
