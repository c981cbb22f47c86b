#include "console.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "commands.hpp"

namespace stet::cli {
namespace {

/// Bytes of `text` at `at` that make a control character: 1 for C0 and DEL, 2 for C1 as UTF-8, else 0.
std::size_t control_at(std::string_view text, std::size_t at) {
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte < 0x20 || byte == 0x7f) return 1;
  if (byte != 0xc2 || at + 1 == text.size()) return 0;
  const auto next = static_cast<unsigned char>(text[at + 1]);
  return next >= 0x80 && next < 0xa0 ? 2 : 0;
}

/// 0, or the reason why not everything was written.
int write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(n));
    } else if (errno == EAGAIN) {  // a pipe that another process made non-blocking
      pollfd ready{fd, POLLOUT, 0};
      ::poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

bool same_file(int a, int b) {
  struct stat first {
  }, second{};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace

std::string printable(std::string_view text, bool keep_layout) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const bool layout = keep_layout && (text[i] == '\n' || text[i] == '\t');
    const std::size_t control = layout ? 0 : control_at(text, i);
    if (control == 0) {
      out += text[i++];
      continue;
    }
    for (const std::size_t end = i + control; i < end; ++i) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[i]));
    }
  }
  return out;
}

void say(std::string_view message) {
  write_all(STDERR_FILENO, fmt::format("stet: {}\n", printable(message)));
}

int report(const Error& error) {
  say(error.message);
  return error.code == Code::interrupted ? kInterrupted : kFailure;
}

bool Output::write(std::string_view bytes) {
  if (closed_ || !state_) return false;
  if (bytes.empty()) return true;
  const int reason = write_all(fd_, bytes);
  if (reason == 0) {
    last_ = bytes.back();
    return true;
  }
  closed_ = reason == EPIPE;
  if (!closed_) state_ = fail(Code::io, fmt::format("{}: {}", name_, std::generic_category().message(reason)));
  return false;
}

bool Output::write_text(std::string_view text) {
  return write(terminal() ? printable(text, true) : std::string(text));
}

bool Output::terminal() const noexcept {
  return ::isatty(fd_) != 0;
}

int print_line(std::string line, int code) {
  Output out(STDOUT_FILENO);
  line += '\n';
  out.write(line);
  return out.state() ? code : report(out.state().error());
}

void end_text(Output& out) {
  if (out.last() == '\n') return;
  // The text itself stays as it is wherever a program reads it.
  if (out.terminal()) {
    out.write("\n");
  } else if (same_file(STDOUT_FILENO, STDERR_FILENO)) {
    write_all(STDERR_FILENO, "\n");
  }
}

Progress::Progress(std::string_view what)
    : what_(printable(what)), start_(std::chrono::steady_clock::now()), terminal_(::isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  clear();
}

void Progress::show(double fraction) {
  line(fmt::format("{} {} %", what_, static_cast<int>(fraction * 100)));
}

void Progress::show(std::string_view detail) {
  line(fmt::format("{} {}", what_, printable(detail)));
}

void Progress::clear() {
  if (!shown_.empty()) write_all(STDERR_FILENO, "\r\x1b[K");
  shown_.clear();
}

void Progress::line(std::string text) {
  if (!terminal_ || text == shown_) return;
  if (std::chrono::steady_clock::now() - start_ < std::chrono::milliseconds(500)) return;
  write_all(STDERR_FILENO, fmt::format("\r\x1b[K{}", text));
  shown_ = std::move(text);
}

}  // namespace stet::cli
