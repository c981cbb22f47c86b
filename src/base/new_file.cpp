#include "base/new_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace stet::base {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

Failure io(const fs::path& target, const char* doing, int reason) {
  return fail(Code::io, fmt::format("{}: {}: {}", target.string(), doing, std::generic_category().message(reason)));
}

// 0, or the reason why the folder's entries may not be on the disk yet. Some file systems cannot say.
int sync_folder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);  // NOLINT(*-vararg)
  if (fd < 0) return errno;
  const int reason = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  return reason == EINVAL ? 0 : reason;
}

}  // namespace

NewFile::NewFile(fs::path target, fs::path temporary, int fd) noexcept
    : target_(std::move(target)), temporary_(std::move(temporary)), fd_(fd) {}

NewFile::NewFile(NewFile&& other) noexcept
    : target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, {})),
      fd_(std::exchange(other.fd_, -1)) {}

NewFile::~NewFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Failure NewFile::failed(const char* doing, int reason) const {
  return io(target_, doing, reason);
}

Result<NewFile> NewFile::create(const fs::path& target) {
  std::error_code ignored;
  fs::path real = target;
  if (fs::is_symlink(target, ignored)) {
    if (fs::path there = fs::canonical(target, ignored); !there.empty()) real = std::move(there);
  }
  // Renaming over a device or a pipe would put a plain file in its place.
  if (const auto status = fs::status(real, ignored); fs::exists(status) && !fs::is_regular_file(status)) {
    return fail(Code::invalid_argument, fmt::format("{}: is there and not a regular file", target.string()));
  }
  constexpr int kTries = 1000;  // names that a killed process of the same number, or another thread, took
  for (int n = 0; n < kTries; ++n) {
    fs::path temporary = folder_of(real) / fmt::format(".stet-{}-{}.tmp", ::getpid(), n);
    const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);  // NOLINT(*-vararg)
    if (fd >= 0) {
      // Who may read the old file may read the new one, and nobody else.
      if (struct stat old{}; ::stat(real.c_str(), &old) == 0) (void)::fchmod(fd, old.st_mode & 07777U);
      return NewFile(std::move(real), std::move(temporary), fd);
    }
    if (errno != EEXIST) return io(target, "cannot make a file beside it", errno);
  }
  return io(target, "cannot make a file beside it", EEXIST);
}

Result<void> NewFile::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  constexpr std::size_t kMost = std::size_t{1} << 30;  // a single write is limited to just under 2 GiB
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), std::min(bytes.size(), kMost), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return failed("writing failed", n < 0 ? errno : ENOSPC);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return {};
}

Result<void> NewFile::commit() {
  if (::fsync(fd_) != 0) return failed("writing failed", errno);
  if (::close(std::exchange(fd_, -1)) != 0) return failed("writing failed", errno);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) return failed("cannot be replaced", errno);
  temporary_.clear();
  if (const int reason = sync_folder(folder_of(target_)); reason != 0) {
    return failed("the new file is in place, but may not outlive a power cut", reason);
  }
  return {};
}

}  // namespace stet::base
