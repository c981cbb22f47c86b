#include "files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "console.hpp"
#include "interrupt.hpp"

namespace stet::cli {
namespace {

constexpr std::size_t kMostInput = std::size_t{256} << 20;

Failure refused(const std::string& name, int reason) {
  return fail(reason == ENOENT ? Code::not_found : Code::io,
              fmt::format("{}: {}", name, std::generic_category().message(reason)));
}

/// Closes on every path; `release` for when closing itself must be checked.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ > STDERR_FILENO) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const noexcept { return fd_; }
  int release() noexcept {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  int fd_;
};

/// The file that a chain of links leads to, whether it exists or not, so that a rename replaces the file and not the
/// link.
std::filesystem::path resolve(std::filesystem::path path) {
  constexpr int kMostLinks = 40;  // as the kernel; a circle then fails when it is opened
  std::error_code error;
  for (int i = 0; i < kMostLinks; ++i) {
    const auto next = std::filesystem::read_symlink(path, error);
    if (error) break;
    path = path.parent_path() / next;  // an absolute one stands for itself
  }
  return path;
}

/// A device, pipe or socket: nothing to put a file in place of.
bool exists_but_special(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode);
}

Result<void> write_parts(int fd, const std::string& name, std::initializer_list<std::string_view> parts) {
  Output out(fd, name);
  for (std::string_view part : parts) {
    while (!part.empty()) {  // in pieces, so that Ctrl-C does not wait for gigabytes
      if (interrupted()) return fail(Code::interrupted, fmt::format("{}: interrupted, not written", name));
      const auto piece = part.substr(0, std::size_t{16} << 20);
      if (!out.write(piece)) return out.state();
      part.remove_prefix(piece.size());
    }
  }
  return {};
}

Result<void> write_and_rename(const std::filesystem::path& target, std::initializer_list<std::string_view> parts) {
  const std::string name = target.string();
  const std::filesystem::path temporary = fmt::format("{}.{}.tmp", name, ::getpid());
  struct stat old {};
  const mode_t mode = ::stat(target.c_str(), &old) == 0 ? old.st_mode & 0777 : 0666;
  Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));  // NOLINT(*-vararg)
  if (file.get() < 0) return refused(name, errno);

  auto written = write_parts(file.get(), name, parts);
  if (::close(file.release()) != 0 && written) written = refused(name, errno);
  if (written && ::rename(temporary.c_str(), target.c_str()) != 0) written = refused(name, errno);
  if (!written) ::unlink(temporary.c_str());
  return written;
}

// Opening a pipe waits for its other end, and Ctrl-C ends the wait.
Failure not_opened(const std::string& name, int error) {
  return error == EINTR && interrupted() ? fail(Code::interrupted, "interrupted") : refused(name, error);
}

}  // namespace

Result<std::string> read_input(const std::string& path) {
  const bool from_stdin = path == "-";
  const std::string name = from_stdin ? "stdin" : path;
  Descriptor file(from_stdin ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC));  // NOLINT(*-vararg)
  if (file.get() < 0) return not_opened(name, errno);
  std::string text;
  for (;;) {
    const std::size_t size = text.size(), more = std::size_t{64} << 10;
    text.resize(size + more);
    const ssize_t n = ::read(file.get(), text.data() + size, more);
    text.resize(size + static_cast<std::size_t>(n > 0 ? n : 0));
    if (n == 0) return text;
    if (n < 0 && errno != EINTR) return refused(name, errno);
    if (interrupted()) return fail(Code::interrupted, "interrupted");
    if (text.size() > kMostInput) {
      return fail(Code::capacity, fmt::format("{}: more than the {} bytes that an input may have", name, kMostInput));
    }
  }
}

Result<void> check_writable(const std::string& path) {
  if (path == "-") return {};
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return refused(path, EISDIR);
  const auto folder = resolve(path).parent_path();
  const auto place = exists_but_special(path) ? path : folder.empty() ? "." : folder.string();
  return ::access(place.c_str(), W_OK) == 0 ? Result<void>() : refused(path, errno);
}

Result<void> write_file(const std::string& path, std::initializer_list<std::string_view> parts) {
  if (path == "-") return write_parts(STDOUT_FILENO, "stdout", parts);
  if (!exists_but_special(path)) return write_and_rename(resolve(path), parts);
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));  // NOLINT(*-vararg)
  if (file.get() < 0) return not_opened(path, errno);
  auto written = write_parts(file.get(), path, parts);
  if (::close(file.release()) != 0 && written) written = refused(path, errno);
  return written;
}

}  // namespace stet::cli
