// The commands of the program. Each adds itself to the parser; when the arguments name it, it hands back what to run.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace stet::cli {

/// Exit codes, as docs/json.md promises them.
inline constexpr int kOk = 0, kFailure = 1, kUsage = 2, kInterrupted = 130;

/// The chosen command; returns the exit code. Empty until the arguments were parsed. Commands run after parsing, so
/// what they report is never mistaken for a usage error.
using Run = std::function<int()>;

void add_generate(CLI::App& app, Run& run);
void add_info(CLI::App& app, Run& run);
void add_plan(CLI::App& app, Run& run);
void add_cache(CLI::App& app, Run& run);
void add_tokenize(CLI::App& app, Run& run);
void add_logits(CLI::App& app, Run& run);
void add_verify(CLI::App& app, Run& run);
void add_eval(CLI::App& app, Run& run);
void add_bench(CLI::App& app, Run& run);
void add_break(CLI::App& app, Run& run);
void add_limit(CLI::App& app, Run& run);

}  // namespace stet::cli
