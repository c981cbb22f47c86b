// What the tests of this room share: folders that vanish, safetensors files made from parts, sources without numbers.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "stet/result.hpp"
#include "weights/source.hpp"

namespace stet::weights {

/// An empty folder, removed at the end with what it holds.
class TempFolder {
 public:
  TempFolder() {
    static std::atomic<int> next{0};
    path_ = std::filesystem::temp_directory_path() /
            ("stet-weights-" + std::to_string(::getpid()) + "-" + std::to_string(next++));
    std::filesystem::create_directories(path_);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }

  std::filesystem::path write(const std::string& name, std::string_view bytes) const {
    const auto path = path_ / name;
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path;
  }

 private:
  std::filesystem::path path_;
};

/// The bytes of numbers as this (little-endian) machine keeps them.
template <class T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// A file: length, header, data.
inline std::string safetensors(const std::string& header, const std::string& data) {
  return bytes_of(std::vector<std::uint64_t>{header.size()}) + header + data;
}

/// One entry of a header: "name":{"dtype":...}.
inline std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                         std::uint64_t begin, std::uint64_t end) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", name, dtype, shape, begin, end);
}

/// {entry,entry,...}
inline std::string header(const std::vector<std::string>& entries) {
  std::string text;
  for (const auto& e : entries) (text += text.empty() ? '{' : ',') += e;
  return text.empty() ? "{}" : text + "}";
}

/// Names and shapes without numbers.
class Listing final : public Source {
 public:
  explicit Listing(std::vector<TensorInfo> tensors) : tensors_(std::move(tensors)) {
    std::sort(tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  }
  std::span<const TensorInfo> tensors() const noexcept override { return tensors_; }
  Result<void> read(const TensorInfo&, std::int64_t, std::span<float>) const override {
    return fail(Code::io, "no data");
  }
  Result<void> read(const TensorInfo&, std::int64_t, std::span<double>) const override {
    return fail(Code::io, "no data");
  }

 private:
  std::vector<TensorInfo> tensors_;
};

/// An error that is one line, not empty, and says `part`.
template <class T>
void expect_error(const Result<T>& result, Code code, const std::string& part) {
  ASSERT_FALSE(result) << "expected an error with: " << part;
  EXPECT_EQ(result.error().code, code) << result.error().message;
  EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message << "\nlacks: " << part;
  EXPECT_EQ(result.error().message.find('\n'), std::string::npos) << result.error().message;
  EXPECT_LT(result.error().message.size(), 1500U);
}

}  // namespace stet::weights
