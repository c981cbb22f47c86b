// The race of the first write-up: the same text generated without a cache and with one in each layout, every step
// timed, ids and bits compared.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/forms.hpp"
#include "report/report.hpp"
#include "stet/result.hpp"

namespace stet::lab {

struct RaceOptions {
  std::string model;
  DType dtype = DType::f32;
  int threads = 1;
  std::vector<Pos> prompts;  // lengths, sorted by race(); empty: 16, 128 and 512 as published, where they fit
  int new_tokens = 0;        // 0: 400 as published, where they fit
  int every = 1;             // uncached forms measure each so manieth step, and their total is estimated
  bool all_logits = false;
  Pos prefill_chunk = 0;  // of cached forms; 0: the prompt in one step
  Pos page_tokens = 16;
  std::uint64_t seed = 0;  // of the prompt's ids
  Wrap wrap;               // of the paged cache: for tests, which plant faults
};

/// One form behind one prompt.
struct RaceRun {
  Form form = Form::contiguous;
  Pos prompt = 0;
  std::vector<double> step_ms;  // of each new token, the first one's with the prompt; not finite: not measured
  double total_ms = 0;          // of all steps; the unmeasured ones by lines between their neighbours
  bool estimated = false;
  std::vector<std::size_t> live_bytes;  // cached: of the cache in use behind each token
  std::size_t cache_bytes = 0, activation_bytes = 0;
  std::optional<std::uint64_t> process_peak;  // while it ran, weights and all
  std::uint64_t copied = 0;                   // bytes moved by the cache
  double copied_formula = 0;                  // bytes a token x (n1^2 - n0^2) / 2 for the growing one, else 0
  int compared = 0, different = 0;  // steps whose logits, as bits, were held to those of the preallocated cache

  double ttft_ms() const { return step_ms.front(); }
  double tpot_ms(double quantile) const;  // of the tokens after the first; between two measured ones on a line
};

struct RaceReport {
  RaceOptions options;      // with what was chosen
  std::string why_smaller;  // why the published lengths were not used; empty: they were, or others were asked for
  std::vector<RaceRun> runs;

  /// Whether every step that was compared had the same bits, and some were.
  bool equal() const;
  const RaceRun& run_of(Form form, Pos prompt) const;
};

struct RaceCallbacks {
  std::function<void(std::string_view)> on_progress;
  std::function<bool()> keep_going;  // false: Code::interrupted
};

/// Code::invalid_argument names prompt, new tokens and context where they do not fit together; errors of engine::load.
Result<RaceReport> race(const RaceOptions& options, const RaceCallbacks& callbacks);

report::Report report_of(const RaceReport& race);

}  // namespace stet::lab
