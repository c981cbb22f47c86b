// A file that is written whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "stet/result.hpp"

namespace stet::base {

/// Bytes go to a temporary file beside the target, `.stet-PID-N.tmp`; commit() puts it in the target's place. Until
/// then, whatever happens, the target is what it was before, and destruction without commit leaves no temporary file.
/// (A process that is killed leaves it.) Errors are Code::io and name the target and the system's reason.
class NewFile {
 public:
  /// A symbolic link is followed. Code::invalid_argument when the target is there and not a regular file.
  static Result<NewFile> create(const std::filesystem::path& target);

  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile();

  /// Anywhere in the file; what is never written is zeros.
  Result<void> write(std::uint64_t offset, std::span<const std::byte> bytes);

  /// Bytes to the disk, the new name over the old one, the folder to the disk. Call once. An error after the renaming
  /// says that the new file is in place.
  Result<void> commit();

 private:
  NewFile(std::filesystem::path target, std::filesystem::path temporary, int fd) noexcept;
  Failure failed(const char* doing, int reason) const;
  std::filesystem::path target_, temporary_;  // no temporary: nothing to clean up
  int fd_ = -1;
};

}  // namespace stet::base
