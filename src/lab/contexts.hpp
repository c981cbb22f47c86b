// The table of the second write-up: what one more token costs behind a context, without a cache and with one, what
// counting multiply-adds says it should, where the time goes, and what memory it takes.
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

struct ContextOptions {
  std::string model;
  DType dtype = DType::f64;
  int threads = 1;
  std::vector<Pos> contexts;  // the new token included; sorted by by_context(); empty: 16 to the model's context in
                              // steps of two, 768 too
  Pos most_uncached = 2048;   // longer ones are measured with the cache only
  std::string trained;        // a folder with a model of the same shape, to compare with up to its context; empty: none
  bool trained_must_fit = false;  // another shape is an error, and not as if there were none
  int tries = 3;                  // the fastest counts; of cached steps 10 x as many
  std::uint64_t seed = 0;
  Wrap wrap;  // of the cache of a step without a cache: for tests, which plant faults
};

/// Milliseconds of one cached step, by what for.
struct Split {
  double weights = 0, attention = 0, head = 0, rest = 0;
  double others() const { return weights + head + rest; }
};

struct ContextRow {
  Pos context = 0;
  std::optional<double> at_once_ms, by_rows_ms;  // without a cache
  double cached_ms = 0;
  Split split;                                  // of the fastest cached step
  double cached_madds = 0, uncached_madds = 0;  // multiply-adds of the step in either way
  std::optional<double> trained_ms, random_ms;  // cached, by the trained model and by random weights of its shape
  double counted() const { return uncached_madds / cached_madds; }  // speed-up by multiply-adds
  std::optional<double> speed_up() const;                           // measured: rows of scores over cached
};

struct ContextReport {
  ContextOptions options;
  std::vector<ContextRow> rows;
  int compared = 0, different = 0;  // logits, as bits, of uncached forms held to the cached ones
  bool published_shape = false;     // it is the second write-up's model, so that its figures may stand beside
  double bend_layers = 0;     // context where attention and the rest of a step have the same multiply-adds: layers
  double bend_with_head = 0;  // only, and with the output head
  std::optional<double> bend_measured;  // where their times cross, by a line between the rows (log scale)
};

struct ContextCallbacks {
  std::function<void(std::string_view)> on_progress;
  std::function<bool()> keep_going;  // false: Code::interrupted
};

/// Code::invalid_argument names a context that the model does not have; errors of engine::load.
Result<ContextReport> by_context(const ContextOptions& options, const ContextCallbacks& callbacks);
report::Report report_of(const ContextReport& contexts);

/// What one step takes at a context, or the filling of a cache up to it.
struct MemoryRow {
  std::string what, field;
  bool prefill = false;
  double ms = 0;
  std::size_t cache_bytes = 0, activation_bytes = 0, score_bytes = 0;  // scores are part of the activations
  std::optional<std::uint64_t> process_peak;                           // above what the process had before
  std::string skipped;  // why it was not run: what it needs and what there is; empty: it was
};

struct MemoryOptions {
  std::string model;
  DType dtype = DType::f64;
  int threads = 1;
  Pos context = 0;  // 0: 2,048, or the model's context if that is less
  Pos prefill_chunk = 256;
  std::uint64_t seed = 0;
  Wrap wrap;  // of the cache of a step without a cache: for tests, which plant faults
};

struct MemoryReport {
  MemoryOptions options;
  bool published_shape = false;
  std::vector<MemoryRow> rows;
  int compared = 0, different = 0;
};

Result<MemoryReport> memory_of_forms(const MemoryOptions& options, const ContextCallbacks& callbacks);
report::Report report_of(const MemoryReport& memory);

}  // namespace stet::lab
