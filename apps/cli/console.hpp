// What the program says: results on stdout, everything else on stderr.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "stet/result.hpp"

namespace stet::cli {

/// The text with control characters spelled \xNN, so that names from files and model output cannot steer a terminal.
/// Tab and line feed pass only with `keep_layout`.
std::string printable(std::string_view text, bool keep_layout = false);

/// "stet: MESSAGE" as one line on stderr.
void say(std::string_view message);

/// Says the error; returns the exit code that goes with it.
int report(const Error& error);

/// Writes to a file descriptor that somebody else opened. The first failure is kept and later writes do nothing.
class Output {
 public:
  explicit Output(int fd, std::string name = "stdout") : fd_(fd), name_(std::move(name)) {}

  /// False when this or an earlier write failed.
  bool write(std::string_view bytes);
  /// As write; control characters are spelled out if the output is a terminal.
  bool write_text(std::string_view text);

  bool terminal() const noexcept;
  /// The reader went away (`stet generate | head -1`): not an error, just the end.
  bool closed() const noexcept { return closed_; }
  /// Ok, or why the writing failed. A closed pipe is ok here.
  const Result<void>& state() const noexcept { return state_; }
  /// The last byte that was written; a line feed at the start.
  char last() const noexcept { return last_; }

 private:
  int fd_;
  std::string name_;
  bool closed_ = false;
  char last_ = '\n';
  Result<void> state_;
};

/// Writes one line to stdout and gives the command's exit code: `code`, or failure with a message when stdout refused.
int print_line(std::string line, int code);

/// Ends what a command streamed to `out`, so that the next line on stderr does not stand right behind it.
void end_text(Output& out);

/// What is being done, on stderr: only on a terminal, and only once it has taken half a second.
class Progress {
 public:
  explicit Progress(std::string_view what);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(double fraction);          // "loading MODEL 42 %"
  void show(std::string_view detail);  // "verify f32 prefill/chunks of 16"
  /// Takes the line away, for one on stdout to stand there.
  void clear();

 private:
  void line(std::string text);

  std::string what_;
  std::chrono::steady_clock::time_point start_;
  bool terminal_;
  std::string shown_;
};

}  // namespace stet::cli
