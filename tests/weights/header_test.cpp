// Headers, well formed and hostile, as text.
#include <gtest/gtest.h>

#include "support.hpp"
#include "weights/safetensors_header.hpp"

namespace stet::weights {
namespace {

Result<std::vector<StoredTensor>> parse(const std::string& text, std::uint64_t data_size) {
  return parse_safetensors_header(text, data_size, "f");
}

TEST(Header, GivesTensorsInTheOrderOfTheirData) {
  const auto tensors = parse(header({entry("z", "F32", "[2,3]", 0, 24), R"("__metadata__":{"format":"pt"})",
                                     entry("a", "BF16", "[]", 28, 30), entry("m", "I16", "[2]", 24, 28)}) +
                                 "   ",
                             30);
  ASSERT_TRUE(tensors) << tensors.error().message;
  ASSERT_EQ(tensors->size(), 3U);
  EXPECT_EQ((*tensors)[0].info, (TensorInfo{"z", DType::f32, {2, 3}}));
  EXPECT_EQ((*tensors)[0].end, 24U);
  EXPECT_EQ((*tensors)[1].info.name, "m");
  EXPECT_FALSE((*tensors)[1].info.readable());
  EXPECT_EQ((*tensors)[1].info.type_name(), "I16");
  EXPECT_EQ((*tensors)[2].info, (TensorInfo{"a", DType::bf16, {}}));
  EXPECT_EQ((*tensors)[2].info.elements(), 1);
  EXPECT_EQ((*tensors)[2].begin, 28U);
}

TEST(Header, EmptyTensorsAndEmptyFilesAreLegal) {
  EXPECT_TRUE(parse("{}", 0));
  EXPECT_TRUE(parse("{\"__metadata__\":{}}", 0));
  // Two empty tensors at the place where a full one begins, and one behind it.
  const auto tensors =
      parse(header({entry("full", "F64", "[1]", 0, 8), entry("e1", "F32", "[0]", 0, 0),
                    entry("e2", "F16", "[4,0,9223372036854775807]", 0, 0), entry("e3", "U8", "[0]", 8, 8)}),
            8);
  ASSERT_TRUE(tensors) << tensors.error().message;
  EXPECT_EQ(tensors->size(), 4U);
  EXPECT_EQ(tensors->front().info.elements(), 0);
}

TEST(Header, KnowsEveryTypeOfWholeBytes) {
  const std::pair<const char*, std::uint64_t> types[] = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
      {"F32", 4},  {"F64", 8}, {"I64", 8}, {"U64", 8},     {"C64", 8}};
  for (const auto& [type, bytes] : types) {
    const auto tensors = parse(header({entry("a", type, "[3]", 0, 3 * bytes)}), 3 * bytes);
    ASSERT_TRUE(tensors) << tensors.error().message;
    const std::string name = type;
    EXPECT_EQ(tensors->front().info.readable(), name == "F64" || name == "F32" || name == "F16" || name == "BF16")
        << type;
  }
}

struct Hostile {
  const char* what;
  std::string header;
  std::uint64_t data_size;
  const char* error;
  Code code = Code::corrupt;
};

std::string with(const std::string& members) {
  return "{\"t\":{" + members + "}}";
}

TEST(Header, RefusesEachFaultByName) {
  const std::string ok = R"("dtype":"F32","shape":[1],"data_offsets":[0,4])";
  ASSERT_TRUE(parse(with(ok), 4));
  const std::vector<Hostile> cases = {
      {"a list", "[]", 0, "f: header does not begin with an object"},
      {"leading space", " {}", 0, "f: header does not begin with an object"},
      {"empty", "", 0, "f: header does not begin with an object"},
      {"not UTF-8", "{\"\xff\":1}", 0, "f: header: not UTF-8 at byte 3"},
      {"not JSON", "{\"a\":", 0, "f: header: not JSON at byte 6"},
      {"text behind", "{}x", 0, "f: header: not JSON at byte 3"},
      {"zero byte behind", std::string("{}\0", 3), 0, "f: header: not JSON at byte 3"},
      {"deep", fmt::format("{{\"a\":{:[>100000}", ""), 0, "f: header: JSON nested deeper than 64"},
      {"duplicate tensor", header({entry("t", "F32", "[1]", 0, 4), entry("t", "F32", "[1]", 0, 4)}), 4,
       "f: header: duplicate key t"},
      {"duplicate member", with(R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"dtype":"F64")"), 4,
       "f: header: duplicate key dtype"},
      {"metadata is a list", "{\"__metadata__\":[]}", 0, "f: __metadata__ is not an object"},
      {"metadata holds a number", "{\"__metadata__\":{\"a\":1}}", 0, "f: __metadata__ a is 1, not a string"},
      {"tensor is a number", "{\"t\":1}", 0, "f: tensor t: is not an object"},
      {"no dtype", with(R"("shape":[1],"data_offsets":[0,4])"), 4, "f: tensor t: has no dtype"},
      {"no shape", with(R"("dtype":"F32","data_offsets":[0,4])"), 4, "f: tensor t: has no shape"},
      {"no offsets", with(R"("dtype":"F32","shape":[1])"), 4, "f: tensor t: has no data_offsets"},
      {"dtype is a number", with(R"("dtype":32,"shape":[1],"data_offsets":[0,4])"), 4,
       "f: tensor t: dtype is 32, not a string"},
      {"unknown type", with(R"("dtype":"F31","shape":[1],"data_offsets":[0,4])"), 4,
       "f: tensor t: unknown type \"F31\"", Code::unsupported},
      {"lower case", with(R"("dtype":"f32","shape":[1],"data_offsets":[0,4])"), 4, "unknown type \"f32\"",
       Code::unsupported},
      {"packed type", with(R"("dtype":"F4","shape":[2],"data_offsets":[0,1])"), 1, "unknown type \"F4\"",
       Code::unsupported},
      {"shape is a number", with(R"("dtype":"F32","shape":1,"data_offsets":[0,4])"), 4,
       "f: tensor t: shape is 1, not a list"},
      {"negative", with(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), 4, "f: tensor t: shape holds -1"},
      {"float", with(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"), 4, "f: tensor t: shape holds 1.0"},
      {"string", with(R"("dtype":"F32","shape":["1"],"data_offsets":[0,4])"), 4, "f: tensor t: shape holds \"1\""},
      {"2^63", with(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4])"), 4,
       "f: tensor t: shape holds 9223372036854775808, which is not"},
      {"2^64", with(R"("dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,4])"), 4,
       "f: tensor t: shape holds 1.84"},
      {"product overflows", with(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4])"), 4,
       "f: tensor t: shape holds more than 2^63 - 1 elements at dimension 2"},
      {"product overflows to zero", with(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0,
       "more than 2^63 - 1 elements"},
      {"overflows before a zero", with(R"("dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0])"), 0,
       "more than 2^63 - 1 elements at dimension 2"},
      {"bytes overflow", with(R"("dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4])"), 4,
       "f: tensor t: 4611686018427387905 elements of 4 bytes are more than 2^64 - 1 bytes"},
      {"65 dimensions",
       with(R"("dtype":"U8","shape":[1)" +
            [] {
              std::string ones;
              for (int i = 0; i < 64; ++i) ones += ",1";
              return ones;
            }() +
            R"(],"data_offsets":[0,1])"),
       1, "f: tensor t: shape has 65 dimensions, more than 64"},
      {"offsets are a number", with(R"("dtype":"F32","shape":[1],"data_offsets":4)"), 4,
       "f: tensor t: data_offsets is not a list of two"},
      {"three offsets", with(R"("dtype":"F32","shape":[1],"data_offsets":[0,4,8])"), 4,
       "f: tensor t: data_offsets is not a list of two"},
      {"negative offset", with(R"("dtype":"F32","shape":[1],"data_offsets":[-4,0])"), 4,
       "f: tensor t: data_offsets holds -4"},
      {"float offset", with(R"("dtype":"F32","shape":[1],"data_offsets":[0,4e0])"), 4,
       "f: tensor t: data_offsets holds 4.0"},
      {"huge offset", with(R"("dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,18446744073709551615])"),
       4, "f: tensor t: data_offsets holds 18446744073709551612"},
      {"backwards", with(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), 4,
       "f: tensor t: data_offsets [4, 0] end before they begin"},
      {"beyond the file", with(ok), 3, "f: tensor t: ends at byte 4, beyond the 3 bytes of data"},
      {"too short", with(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4,
       "f: tensor t: data_offsets [0, 4] hold 4 bytes, but [2] of type F32 takes 8"},
      {"too long", with(R"("dtype":"F16","shape":[1],"data_offsets":[0,4])"), 4,
       "f: tensor t: data_offsets [0, 4] hold 4 bytes, but [1] of type F16 takes 2"},
      {"scalar of no bytes", with(R"("dtype":"F32","shape":[],"data_offsets":[0,0])"), 0,
       "hold 0 bytes, but [] of type F32 takes 4"},
      {"overlap", header({entry("a", "F32", "[2]", 0, 8), entry("b", "F32", "[2]", 4, 12)}), 12,
       "f: tensor b: begins at byte 4 of the data, overlapping byte 8 where the one before ends"},
      {"same place", header({entry("a", "F32", "[1]", 0, 4), entry("b", "F32", "[1]", 0, 4)}), 4,
       "f: tensor b: begins at byte 0 of the data, overlapping byte 4"},
      {"gap", header({entry("a", "F32", "[1]", 0, 4), entry("b", "F32", "[1]", 8, 12)}), 12,
       "f: tensor b: begins at byte 8 of the data, a gap after byte 4"},
      {"gap before the first", header({entry("a", "F32", "[1]", 4, 8)}), 8,
       "f: tensor a: begins at byte 4 of the data, a gap after byte 0"},
      {"data behind the last", with(ok), 5, "f: the tensors end at byte 4 of the data, but it has 5 bytes"},
      {"data without tensors", "{}", 1, "f: the tensors end at byte 0 of the data, but it has 1 bytes"},
      {"a name with a line break", "{\"a\\nb\":1}", 0, "f: tensor a\\x0ab: is not an object"},
  };
  for (const Hostile& c : cases) {
    SCOPED_TRACE(c.what);
    expect_error(parse(c.header, c.data_size), c.code, c.error);
  }
}

TEST(Header, LengthIsCheckedAgainstTheFile) {
  const auto length = [](std::uint64_t stated, std::uint64_t file_size) {
    return parse_header_length(bytes_of(std::vector<std::uint64_t>{stated}), file_size, "f");
  };
  ASSERT_TRUE(length(2, 10));
  EXPECT_EQ(*length(0x0102, 1000), 0x0102U);
  EXPECT_TRUE(length(100'000'000, 100'000'008));
  expect_error(length(3, 10), Code::corrupt, "f: header of 3 bytes, but only 2 follow its length");
  expect_error(length(0, 100), Code::corrupt, "f: header of 0 bytes, too short for JSON");
  expect_error(length(1, 100), Code::corrupt, "f: header of 1 bytes, too short for JSON");
  expect_error(length(100'000'001, 1'000'000'000), Code::corrupt,
               "f: header of 100000001 bytes, more than the 100000000");
  expect_error(length(std::uint64_t{1} << 63, 100), Code::corrupt, "f: header of 9223372036854775808 bytes, more than");
  expect_error(length(~std::uint64_t{0}, 100), Code::corrupt, "f: header of 18446744073709551615 bytes, more than");
  expect_error(parse_header_length("1234567", 7, "f"), Code::corrupt,
               "f: 7 bytes, too short for the length of a safetensors header");
}

}  // namespace
}  // namespace stet::weights
