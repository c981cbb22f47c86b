// The commands of the program. Each adds itself to the parser; when the arguments name it, it hands back what to run.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace stet::cli {

/// Exit codes, as docs/json.md promises them.
inline constexpr int kOk = 0, kFailure = 1, kUsage = 2, kInterrupted = 130;

/// The chosen command; returns the exit code. Empty until the arguments were parsed. Commands run after parsing, so
/// what they report is never mistaken for a usage error.
class Run {
 public:
  /// `words` are the whole command line, the program's name first.
  explicit Run(std::vector<std::string> words) : words_(std::move(words)) {}

  Run& operator=(std::function<int()> work) {
    work_ = std::move(work);
    return *this;
  }
  explicit operator bool() const noexcept { return static_cast<bool>(work_); }
  int operator()() const { return work_(); }

  const std::vector<std::string>& words() const noexcept { return words_; }

 private:
  std::vector<std::string> words_;
  std::function<int()> work_;
};

void add_generate(CLI::App& app, Run& run);
void add_info(CLI::App& app, Run& run);
void add_plan(CLI::App& app, Run& run);
void add_cache(CLI::App& app, Run& run);
void add_tokenize(CLI::App& app, Run& run);
void add_logits(CLI::App& app, Run& run);
void add_verify(CLI::App& app, Run& run);
void add_eval(CLI::App& app, Run& run);
void add_bench(CLI::App& app, Run& run);
void add_race(CLI::App& app, Run& run);
void add_break(CLI::App& app, Run& run);
void add_limit(CLI::App& app, Run& run);

}  // namespace stet::cli
