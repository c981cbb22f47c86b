#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "base/buffer.hpp"
#include "base/file.hpp"

namespace stet::base {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class FileTest : public testing::Test {
 protected:
  FileTest() : folder_(fs::path(testing::TempDir()) / ("stet-file-" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
  }
  ~FileTest() override { fs::remove_all(folder_); }
  fs::path write(const std::string& text) {
    std::ofstream(folder_ / "file", std::ios::binary) << text;
    return folder_ / "file";
  }
  fs::path folder_;
};

TEST_F(FileTest, ReadsWhatIsThere) {
  auto file = File::open(write("hello"));
  ASSERT_TRUE(file);
  EXPECT_EQ(file->size(), 5U);
  std::string part(3, ' ');
  ASSERT_TRUE(file->read(1, std::as_writable_bytes(std::span(part))));
  EXPECT_EQ(part, "ell");
  EXPECT_EQ(*read_text(folder_ / "file"), "hello");
}

TEST_F(FileTest, AFileThatShrankIsAnErrorThatNamesTheOffset) {
  auto file = File::open(write("hello"));
  fs::resize_file(folder_ / "file", 2);
  std::string all(5, ' ');
  const auto result = file->read(0, std::as_writable_bytes(std::span(all)));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, Code::io);
  EXPECT_THAT(result.error().message, HasSubstr("offset 2, 3 bytes before"));
}

TEST_F(FileTest, NamesWhatIsNotAFile) {
  EXPECT_EQ(File::open(folder_ / "none").error().code, Code::not_found);
  EXPECT_THAT(File::open(folder_).error().message, HasSubstr("directory"));
  ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(File::open(folder_ / "pipe").error().message, HasSubstr("not a regular file"));  // and does not hang
}

TEST_F(FileTest, RefusesATextBeyondTheLimit) {
  EXPECT_EQ(read_text(write("12345"), 4).error().code, Code::corrupt);
  EXPECT_EQ(*read_text(write("")), "");
}

TEST(Buffer, HugePagesAreAskedForInsideItAlone) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{100}, std::size_t{3} << 20, (std::size_t{9} << 20) + 7}) {
    auto buffer = std::move(*Buffer::allocate(bytes));
    buffer.prefer_huge_pages();
    std::fill_n(buffer.data(), bytes, std::byte{1});
  }
  Buffer().prefer_huge_pages();
}

TEST(Buffer, IsAlignedAndRefusesWhatCannotBe) {
  auto buffer = Buffer::allocate(100);
  ASSERT_TRUE(buffer);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % kAlign, 0U);
  EXPECT_EQ(buffer->size(), 100U);
  const auto refused = Buffer::allocate(~std::size_t{0} - 10);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::capacity);
}

}  // namespace
}  // namespace stet::base
