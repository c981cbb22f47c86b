// Files read by position: a file that shrinks while it is open gives a short read, which is an error, never a fault.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "stet/result.hpp"

namespace stet::base {

class File {
 public:
  /// Opens a regular file for reading. Errors name the path and the system's reason.
  static Result<File> open(const std::filesystem::path& path);

  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  const std::filesystem::path& path() const noexcept { return path_; }
  std::uint64_t size() const noexcept { return size_; }  // when it was opened

  /// Fills `out` from `offset`. Code::io names path and offset when the file ends before. Safe from several threads.
  Result<void> read(std::uint64_t offset, std::span<std::byte> out) const;

 private:
  File(std::filesystem::path path, int fd, std::uint64_t size) noexcept;
  std::filesystem::path path_;
  int fd_ = -1;
  std::uint64_t size_ = 0;
};

/// The whole text of a file of at most `limit` bytes.
Result<std::string> read_text(const std::filesystem::path& path, std::uint64_t limit = std::uint64_t{1} << 30);

}  // namespace stet::base
