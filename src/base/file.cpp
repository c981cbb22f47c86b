#include "base/file.hpp"

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

std::string system_reason(int error) {
  return std::generic_category().message(error);
}

}  // namespace

File::File(std::filesystem::path path, int fd, std::uint64_t size) noexcept
    : path_(std::move(path)), fd_(fd), size_(size) {}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  return *this;
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

Result<File> File::open(const std::filesystem::path& path) {
  // Non-blocking, so that a FIFO in place of a file is an error and not a hang.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // NOLINT(*-vararg)
  if (fd < 0) {
    const int reason = errno;
    return fail(reason == ENOENT ? Code::not_found : Code::io,
                fmt::format("{}: {}", path.string(), system_reason(reason)));
  }
  File file(path, fd, 0);
  struct stat status {};
  if (::fstat(fd, &status) != 0) return fail(Code::io, fmt::format("{}: {}", path.string(), system_reason(errno)));
  if (S_ISDIR(status.st_mode)) return fail(Code::io, fmt::format("{}: is a directory, not a file", path.string()));
  if (!S_ISREG(status.st_mode)) return fail(Code::io, fmt::format("{}: is not a regular file", path.string()));
  file.size_ = static_cast<std::uint64_t>(status.st_size);
  return file;
}

Result<void> File::read(std::uint64_t offset, std::span<std::byte> out) const {
  constexpr std::size_t kMost = std::size_t{1} << 30;  // a single read is limited to just under 2 GiB
  while (!out.empty()) {
    const ssize_t n = ::pread(fd_, out.data(), std::min(out.size(), kMost), static_cast<off_t>(offset));
    if (n < 0) {
      if (errno == EINTR) continue;
      return fail(Code::io, fmt::format("{}: offset {}: {}", path_.string(), offset, system_reason(errno)));
    }
    if (n == 0) {
      return fail(Code::io,
                  fmt::format("{}: ends at offset {}, {} bytes before it should", path_.string(), offset, out.size()));
    }
    out = out.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return {};
}

Result<std::string> read_text(const std::filesystem::path& path, std::uint64_t limit) {
  auto file = File::open(path);
  if (!file) return pass(file);
  if (file->size() > limit) {
    return fail(Code::corrupt, fmt::format("{}: {} bytes, more than the {} that such a file may have", path.string(),
                                           file->size(), limit));
  }
  std::string text(file->size(), '\0');
  if (auto r = file->read(0, std::as_writable_bytes(std::span(text))); !r) return pass(r);
  return text;
}

}  // namespace stet::base
