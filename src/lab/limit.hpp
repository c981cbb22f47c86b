// Past the context limit: what a model can do there, and what it costs.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/break.hpp"
#include "lab/wrap.hpp"
#include "report/report.hpp"

namespace stet::lab {

struct LimitOptions {
  std::string model;
  std::string learned = "random:char", rotary = "random:llama-tiny";  // for what the model's positions do not allow
  DType dtype = DType::f32;
  Pos limit = 0;             // tokens of the window; 0: the context, at most 128, or 32 for large models
  std::vector<int> lengths;  // new tokens of texts; empty: 100 and 300 for a limit of 128, and in proportion
  int tries = 0;             // each step's time is the fastest of so many; 0: 5, or 3 for large models
  int threads = 0;           // 0: as many as there are
  std::uint64_t seed = 0;
  Wrap wrap;  // damages one side of each comparison: texts with a cache, and rows that are dropped
};

/// One text, from one token on. With a cache, and past the limit from the last window anew; or without a cache, and
/// past the limit over the last window too.
struct LimitRun {
  bool cached = true;
  int tokens = 0, past = 0;     // new ones, and of them those past the limit
  std::vector<double> seconds;  // of each step
  double published = 0;         // seconds for this length, of the character model of the write-up; 0: none
};

/// Of steps [begin, end), as far as there are any; the mean of none is 0.
double total_of(const std::vector<double>& seconds, Pos begin, Pos end);
double mean_of(const std::vector<double>& seconds, Pos begin, Pos end);

struct LimitReport {
  std::string model, family;
  DType dtype = DType::f32;
  Pos context = 0, limit = 0;
  int tries = 1, threads = 1;
  std::uint64_t seed = 0;
  int fitting = 0;                          // new tokens until the limit, where `stop` ends
  std::vector<LimitRun> runs;               // by length, each with a cache and without
  std::size_t compared = 0, differing = 0;  // logits with a cache against without, bit by bit

  BugReport slide;                    // on the model, or on one with learned positions
  std::vector<double> slide_seconds;  // of each step; empty where another model stood in

  struct Rotary {
    std::string model;
    bool stand_in = false;
    Pos window = 0;
    int tokens = 0;
    std::size_t compared = 0, differing = 0;        // logits: rows dropped against rows only masked
    std::size_t reserved = 0, reserved_masked = 0;  // bytes of the two caches, as they were handed out
    Pos evicted = 0;                                // rows that were dropped, until the text's end
    std::vector<double> seconds;                    // of each step, rows dropped
  } rotary;

  /// Whether recomputing is exact and a rotary window is, and the slide was caught.
  bool holds() const;
};

struct LimitCallbacks {
  std::function<void(std::string_view)> on_progress;
  std::function<bool()> keep_going;  // false: Code::interrupted
};

/// Code::invalid_argument names a limit beyond the context or too short, and a length below 1; and what loading a model
/// can say.
Result<LimitReport> measure_limit(const LimitOptions& options, const LimitCallbacks& callbacks);

report::Table table_of(const LimitReport& report);
/// The answer in a few sentences, a line each.
std::vector<std::string> words_of(const LimitReport& report);
report::Report report_of(const LimitReport& report);

}  // namespace stet::lab
