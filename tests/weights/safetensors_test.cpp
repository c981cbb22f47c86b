// Files and folders: opening, reading by parts, shards, and what happens when bytes go missing.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <thread>

#include "support.hpp"
#include "weights/checkpoint.hpp"

namespace stet::weights {
namespace {

namespace fs = std::filesystem;

/// One tensor of each readable type, a scalar, an empty one and one of integers.
std::string small_file() {
  const std::string text = header({entry("f32", "F32", "[2,3]", 0, 24), entry("f64", "F64", "[2]", 24, 40),
                                   entry("f16", "F16", "[3]", 40, 46), entry("bf16", "BF16", "[1]", 46, 48),
                                   entry("scalar", "F32", "[]", 48, 52), entry("empty", "F32", "[0,7]", 52, 52),
                                   entry("mask", "U8", "[2,2]", 52, 56)});
  return safetensors(text, bytes_of<float>({1, 2, 3, 4, 5, 6}) + bytes_of<double>({0.1, -2}) +
                               bytes_of<std::uint16_t>({0x3C00, 0xC000, 0x0001}) + bytes_of<std::uint16_t>({0xBFC0}) +
                               bytes_of<float>({7.25F}) + std::string(4, '\1'));
}

template <class T>
std::vector<T> read_all(const Source& source, const char* name) {
  const TensorInfo* tensor = source.find(name);
  EXPECT_NE(tensor, nullptr) << name;
  if (tensor == nullptr) return {};
  std::vector<T> out(static_cast<std::size_t>(tensor->elements()));
  const auto ok = source.read(*tensor, 0, std::span(out));
  EXPECT_TRUE(ok) << ok.error().message;
  return out;
}

TEST(Safetensors, ReadsEveryType) {
  const TempFolder folder;
  const auto source = open_safetensors(folder.write("x.safetensors", small_file()));
  ASSERT_TRUE(source) << source.error().message;
  std::vector<std::string> names;
  for (const auto& tensor : (*source)->tensors()) names.push_back(tensor.name);
  EXPECT_EQ(names, (std::vector<std::string>{"bf16", "empty", "f16", "f32", "f64", "mask", "scalar"}));
  EXPECT_EQ(read_all<float>(**source, "f32"), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(read_all<double>(**source, "f32"), (std::vector<double>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(read_all<double>(**source, "f64"), (std::vector<double>{0.1, -2}));
  EXPECT_EQ(read_all<float>(**source, "f64"), (std::vector<float>{0.1F, -2}));
  EXPECT_EQ(read_all<float>(**source, "f16"), (std::vector<float>{1, -2, 0x1p-24F}));
  EXPECT_EQ(read_all<double>(**source, "bf16"), (std::vector<double>{-1.5}));
  EXPECT_EQ(read_all<float>(**source, "scalar"), (std::vector<float>{7.25F}));
  EXPECT_EQ(read_all<float>(**source, "empty"), std::vector<float>{});
}

TEST(Safetensors, RefusesReadsThatCannotBe) {
  const TempFolder folder;
  const auto source = open_safetensors(folder.write("x.safetensors", small_file()));
  ASSERT_TRUE(source);
  std::vector<float> out(4);
  const auto read = [&](const char* name, std::int64_t begin, std::size_t count) {
    return (*source)->read(TensorInfo{name, DType::f32, {}}, begin, std::span(out).first(count));
  };
  EXPECT_TRUE(read("f32", 3, 3));
  EXPECT_EQ(out[0], 4);
  EXPECT_TRUE(read("f32", 6, 0));
  expect_error(read("f32", 3, 4), Code::invalid_argument, "tensor f32: 4 elements from 3 asked for, it has 6");
  expect_error(read("f32", -1, 1), Code::invalid_argument, "tensor f32: 1 elements from -1 asked for");
  expect_error(read("f32", 7, 0), Code::invalid_argument, "tensor f32: 0 elements from 7 asked for");
  expect_error(read("f32", std::numeric_limits<std::int64_t>::max(), 4), Code::invalid_argument, "tensor f32");
  expect_error(read("nobody", 0, 1), Code::not_found, "there is no tensor nobody");
  expect_error(read("mask", 0, 4), Code::unsupported, "tensor mask is of type U8, which cannot be read as weights");
}

TEST(Safetensors, AnyPiecesFromAnyThreadGiveTheSame) {
  constexpr std::size_t kCount = 100'003;  // more than the piece in which halves are widened
  std::vector<std::uint16_t> halves(kCount);
  std::mt19937 random(1);
  for (auto& half : halves) half = static_cast<std::uint16_t>(random() % 0x7C00);
  const TempFolder folder;
  const auto source = open_safetensors(folder.write(
      "x.safetensors",
      safetensors(header({entry("a", "F16", fmt::format("[{}]", kCount), 0, 2 * kCount)}), bytes_of(halves))));
  ASSERT_TRUE(source) << source.error().message;
  const auto whole = read_all<float>(**source, "a");
  std::vector<float> pieces(kCount);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 sizes(static_cast<unsigned>(t));
      const std::size_t end = kCount * (t + 1) / 4;
      for (std::size_t at = kCount * t / 4; at < end;) {
        const std::size_t n = std::min<std::size_t>(end - at, sizes() % 5000);
        ASSERT_TRUE(
            (*source)->read((*source)->tensors()[0], static_cast<std::int64_t>(at), std::span(pieces).subspan(at, n)));
        at += n;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(pieces, whole);
  for (std::size_t i = 0; i < kCount; ++i) {
    const int exponent = halves[i] >> 10, fraction = halves[i] & 1023;
    ASSERT_EQ(whole[i], std::ldexp(exponent == 0 ? fraction : 1024 + fraction, std::max(exponent, 1) - 25));
  }
}

TEST(Safetensors, EveryTruncationAndExtensionIsRefused) {
  const TempFolder folder;
  const std::string file = small_file();
  const auto path = folder.write("x.safetensors", file + "x");
  expect_error(open_safetensors(path), Code::corrupt, "but it has 57 bytes");
  fs::resize_file(path, file.size());
  EXPECT_TRUE(open_safetensors(path));
  for (std::size_t size = file.size(); size-- > 0;) {
    SCOPED_TRACE(size);
    fs::resize_file(path, size);
    expect_error(open_safetensors(path), Code::corrupt, path.string() + ": ");
  }
}

// Most changes are refused; what is accepted can be read.
TEST(Safetensors, NoChangedByteOfTheHeaderDoesHarm) {
  const TempFolder folder;
  const std::string file = small_file();
  const auto path = folder.write("x.safetensors", file);
  std::fstream stream(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto put = [&](std::size_t at, char byte) { stream.seekp(static_cast<std::streamoff>(at)).put(byte).flush(); };
  std::mt19937 random(1);
  std::size_t refused = 0;
  for (std::size_t at = 0; at < file.size() - 56; ++at) {
    put(at, static_cast<char>(random()));
    if (const auto source = open_safetensors(path); !source) {
      ++refused;
    } else {
      for (const auto& tensor : (*source)->tensors()) {
        if (tensor.readable()) read_all<double>(**source, tensor.name.c_str());
      }
    }
    put(at, file[at]);
  }
  EXPECT_GT(refused, file.size() / 2);
  EXPECT_TRUE(open_safetensors(path));
}

TEST(Safetensors, AFileThatShrinksIsAnErrorNotAFault) {
  const TempFolder folder;
  const auto path = folder.write("x.safetensors", small_file());
  const auto source = open_safetensors(path);
  ASSERT_TRUE(source);
  const std::uint64_t data = fs::file_size(path) - 56;
  fs::resize_file(path, data + 30);
  std::vector<double> out(2);
  const auto direct = (*source)->read(*(*source)->find("f64"), 0, std::span(out));
  expect_error(direct, Code::io, path.string() + ": ends at offset " + std::to_string(data + 30));
  expect_error(direct, Code::io, "while reading tensor f64");
  expect_error((*source)->read(*(*source)->find("f16"), 0, std::span(out)), Code::io, "while reading tensor f16");
  EXPECT_EQ(read_all<float>(**source, "f32"), (std::vector<float>{1, 2, 3, 4, 5, 6}));  // what is left can be read
}

TEST(Safetensors, SaysWhatIsMissing) {
  const TempFolder folder;
  expect_error(open_safetensors(folder.path()), Code::not_found,
               folder.path().string() + ": has neither model.safetensors nor model.safetensors.index.json");
  expect_error(open_safetensors(folder.path() / "nobody"), Code::not_found, "nobody: No such file or directory");
  fs::create_directory(folder.path() / "model.safetensors");
  expect_error(open_safetensors(folder.path()), Code::io, "model.safetensors: is a directory");
}

class Sharded : public ::testing::Test {
 protected:
  void SetUp() override {
    shard("1.safetensors", {"a", "b"});
    shard("2.safetensors", {"c"});
  }
  void shard(const std::string& file, const std::vector<std::string>& names) {
    std::vector<std::string> entries;
    std::vector<float> data;
    for (const auto& name : names) {
      entries.push_back(entry(name, "F32", "[1]", 4 * data.size(), 4 * data.size() + 4));
      data.push_back(static_cast<float>(name[0]));
    }
    folder_.write(file, safetensors(header(entries), bytes_of(data)));
  }
  Result<std::unique_ptr<Source>> open(const std::string& index) {
    folder_.write("model.safetensors.index.json", index);
    return open_safetensors(folder_.path());
  }
  Result<std::unique_ptr<Source>> open_map(const std::string& map) {
    return open(fmt::format(R"({{"metadata":{{"total_size":12}},"weight_map":{{{}}}}})", map));
  }
  const std::string all_ = R"("a":"1.safetensors","b":"1.safetensors","c":"2.safetensors")";
  TempFolder folder_;
};

TEST_F(Sharded, Opens) {
  const auto source = open_map(all_);
  ASSERT_TRUE(source) << source.error().message;
  ASSERT_EQ((*source)->tensors().size(), 3U);
  for (const char* name : {"a", "b", "c"})
    EXPECT_EQ(read_all<float>(**source, name), std::vector<float>{static_cast<float>(name[0])});
}

TEST_F(Sharded, ASingleFileGoesFirst) {
  shard("model.safetensors", {"x"});
  const auto source = open_map(all_);
  ASSERT_TRUE(source);
  EXPECT_EQ((*source)->tensors().size(), 1U);
}

TEST_F(Sharded, RefusesAnIndexThatIsNone) {
  expect_error(open("[]"), Code::corrupt, "index.json: is not an object");
  expect_error(open("{}"), Code::corrupt, "index.json: has no weight_map object");
  expect_error(open(R"({"weight_map":["a"]})"), Code::corrupt, "index.json: has no weight_map object");
  expect_error(open("{"), Code::corrupt, "index.json: not JSON at byte 2");
  expect_error(open_map(R"("a":1)"), Code::corrupt, "tensor a: shard is 1, not a file name");
  expect_error(open_map(all_ + R"(,"a":"2.safetensors")"), Code::corrupt, "index.json: duplicate key a");
}

TEST_F(Sharded, RefusesToLeaveTheFolder) {
  for (const char* shard :
       {"../2.safetensors", "/etc/passwd", "..", ".", "", "sub/2.safetensors", "2.safetensors\\u0000x"}) {
    expect_error(open_map(std::string(R"("a":"1.safetensors","b":"1.safetensors","c":")") + shard + "\""),
                 Code::corrupt, "is not the name of a file in this folder");
  }
}

TEST_F(Sharded, NamesTheTensorOnWhichIndexAndShardsDiffer) {
  expect_error(open_map(R"("a":"1.safetensors","c":"2.safetensors")"), Code::corrupt,
               "index.json: tensor b of 1.safetensors is not in weight_map");
  expect_error(open_map(all_ + R"(,"d":"2.safetensors")"), Code::corrupt,
               "index.json: tensor d is not in 2.safetensors");
  expect_error(open_map(R"("a":"1.safetensors","b":"2.safetensors","c":"2.safetensors")"), Code::corrupt,
               "index.json: tensor b is in 1.safetensors, not in 2.safetensors");
  expect_error(open_map(all_ + R"(,"d":"3.safetensors")"), Code::not_found, "3.safetensors: No such file or directory");
  shard("2.safetensors", {"c", "b"});
  const auto twice = open_map(all_);
  expect_error(twice, Code::corrupt, "tensor b is in both ");
  expect_error(twice, Code::corrupt, "1.safetensors and ");
  folder_.write("2.safetensors", "short");
  expect_error(open_map(all_), Code::corrupt, "2.safetensors: 5 bytes, too short");
}

}  // namespace
}  // namespace stet::weights
