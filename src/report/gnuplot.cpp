#include "report/gnuplot.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

#include "report/escape.hpp"

namespace stet::report {
namespace {

constexpr std::size_t kMostBytes = std::size_t{64} << 20, kMostWords = std::size_t{64} << 10;
constexpr auto kLongest = std::chrono::seconds(60);
constexpr int kAskEach = 50;    // ms
constexpr int kEndingEach = 1;  // ms; between closing its output and ending lies next to nothing

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { reset(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const noexcept { return fd_; }
  void reset(int fd = -1) noexcept {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_;
};

struct Pipe {
  Descriptor read, write;
  bool open() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return false;
    read.reset(ends[0]);
    write.reset(ends[1]);
    return true;
  }
};

Failure no_system(const char* what) {
  return fail(Code::io, fmt::format("gnuplot: {}: {}", what, std::generic_category().message(errno)));
}

// A file in memory that holds the script, to be read from its start.
Result<void> hold(const std::string& script, Descriptor& file) {
  file.reset(::memfd_create("plot", MFD_CLOEXEC));
  if (file.get() < 0) return no_system("no memory for its script");
  for (std::size_t at = 0; at < script.size();) {
    const ssize_t n = ::pwrite(file.get(), script.data() + at, script.size() - at, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return no_system("no memory for its script");
    at += static_cast<std::size_t>(n);
  }
  return {};
}

// The running program. Destruction ends it and collects what it leaves behind.
class Child {
 public:
  ~Child() {
    if (pid_ <= 0) return;
    ::kill(-pid_, SIGKILL);
    while (::waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {
    }
  }

  // 0, or why it did not start.
  int start(int in, int out, int err) {
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    if (const int reason = ::posix_spawn_file_actions_init(&files); reason != 0) return reason;
    if (const int reason = ::posix_spawnattr_init(&how); reason != 0) {
      ::posix_spawn_file_actions_destroy(&files);
      return reason;
    }
    ::posix_spawn_file_actions_adddup2(&files, in, STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&files, err, STDERR_FILENO);
    // In a process group of its own a Ctrl-C at the terminal does not reach it: who asked for the plot decides. What
    // this program ignores or blocks is nothing that gnuplot should inherit.
    sigset_t none, all;
    ::sigemptyset(&none);
    ::sigfillset(&all);
    ::posix_spawnattr_setpgroup(&how, 0);
    ::posix_spawnattr_setsigmask(&how, &none);
    ::posix_spawnattr_setsigdefault(&how, &all);
    ::posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    // -d: no settings of the user's, which could change what the script means.
    std::array<std::string, 2> words{"gnuplot", "-d"};
    char* arguments[] = {words[0].data(), words[1].data(), nullptr};
    const int reason = ::posix_spawnp(&pid_, "gnuplot", &files, &how, arguments, environ);
    if (reason != 0) pid_ = -1;
    ::posix_spawnattr_destroy(&how);
    ::posix_spawn_file_actions_destroy(&files);
    return reason;
  }

  // Does not wait. Once it has, there is a status.
  bool ended() {
    if (pid_ <= 0) return true;
    const pid_t which = ::waitpid(pid_, &status_, WNOHANG);
    if (which == pid_ || (which < 0 && errno != EINTR)) pid_ = -1;
    return pid_ <= 0;
  }

  // As waitpid tells it.
  int status() const noexcept { return status_; }

 private:
  pid_t pid_ = -1;
  int status_ = 0;
};

struct Stream {
  Pipe pipe;
  std::string bytes;
  bool open() const noexcept { return pipe.read.get() >= 0; }
};

// Reads what is there, and closes at the end. What is more than `most` is read and dropped.
void drain(Stream& from, std::size_t most) {
  std::array<char, 1U << 16U> part;
  const ssize_t n = ::read(from.pipe.read.get(), part.data(), part.size());
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (n <= 0) return from.pipe.read.reset();
  from.bytes.append(part.data(), std::min(static_cast<std::size_t>(n), most - std::min(most, from.bytes.size())));
}

// Until gnuplot has closed both and has ended: it may do the one without the other.
Result<void> collect(Child& child, Stream& out, Stream& err, const std::function<bool()>& keep_going) {
  const auto until = std::chrono::steady_clock::now() + kLongest;
  while (out.open() || err.open() || !child.ended()) {
    if (keep_going && !keep_going()) return fail(Code::interrupted, "interrupted while gnuplot drew");
    if (std::chrono::steady_clock::now() > until) {
      return fail(Code::unsupported, fmt::format("gnuplot did not end within {} seconds", kLongest.count()));
    }
    // poll skips negative ones
    pollfd ready[] = {{out.pipe.read.get(), POLLIN, 0}, {err.pipe.read.get(), POLLIN, 0}};
    const int longest = out.open() || err.open() ? kAskEach : kEndingEach;
    if (::poll(ready, 2, longest) < 0 && errno != EINTR) return no_system("its output cannot be waited for");
    if (ready[0].revents != 0) drain(out, kMostBytes + 1);
    if (ready[1].revents != 0) drain(err, kMostWords);
    if (out.bytes.size() > kMostBytes) return fail(Code::unsupported, "gnuplot wrote more than 64 MiB");
  }
  return {};
}

// gnuplot shows the line, an arrow below it, and what is wrong last.
std::string last_line(std::string_view words) {
  const auto end = words.find_last_not_of(" \t\r\n");
  if (end == std::string_view::npos) return "";
  words = words.substr(0, end + 1);
  words.remove_prefix(words.find_last_of('\n') + 1);
  words.remove_prefix(std::min(words.find_first_not_of(" \t"), words.size()));
  constexpr std::size_t kMost = 300;
  return line_of(words.substr(0, kMost));
}

}  // namespace

Result<std::string> run_gnuplot(const std::string& script, const std::function<bool()>& keep_going) {
  Descriptor in;
  if (auto ok = hold(script, in); !ok) return pass(ok);
  Stream out, err;
  if (!out.pipe.open() || !err.pipe.open()) return no_system("no pipe to it");
  Child child;
  if (const int reason = child.start(in.get(), out.pipe.write.get(), err.pipe.write.get()); reason != 0) {
    if (reason == ENOENT) return fail(Code::not_found, "gnuplot is not installed");
    return fail(Code::unsupported,
                fmt::format("gnuplot cannot be started: {}", std::generic_category().message(reason)));
  }
  out.pipe.write.reset();
  err.pipe.write.reset();
  if (auto ok = collect(child, out, err, keep_going); !ok) return pass(ok);
  const int status = child.status();
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return std::move(out.bytes);
  const std::string said = last_line(err.bytes);
  return fail(Code::unsupported,
              fmt::format("gnuplot {}{}{}",
                          WIFSIGNALED(status) ? fmt::format("was ended by signal {}", WTERMSIG(status))
                                              : fmt::format("failed with exit code {}", WEXITSTATUS(status)),
                          said.empty() ? "" : ": ", said));
}

}  // namespace stet::report
