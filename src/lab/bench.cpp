#include "lab/bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>

#include "base/thread_pool.hpp"
#include "engine/cache_setup.hpp"
#include "engine/loaded.hpp"
#include "lab/bench_limits.hpp"

namespace stet::lab {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMostOfBound = 1.03;
constexpr int kDepthChunk = 256;  // rows of the steps that fill a sequence up to its depth; not timed
constexpr int kWarmUpSteps = 4;
constexpr int kSecondLooks = 3;  // at limits that a row exceeded: another program may have been in their way

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

Work work_of_case(const WorkOf& of, const BenchCase& c) {
  if (c.test.kind == BenchTest::Kind::prefill) return work_of(of, {c.depth, c.test.tokens, 1});
  return mean_work(of, {c.depth, 1, c.batch}, c.test.tokens);
}

// The cache of a case.
CacheOptions cache_of(const BenchOptions& o, const BenchCase& c) {
  EngineOptions engine;
  engine.cache = o.cache;
  engine.page_tokens = o.page_tokens;
  engine.pool_tokens = o.pool_tokens;
  engine.max_len = c.depth + c.test.tokens;
  engine.chunk = static_cast<int>(std::min<Pos>(engine.max_len, std::max(kDepthChunk, c.test.tokens)));
  engine.max_seqs = c.batch;
  CacheOptions cache = engine::cache_options(engine);
  if (o.cache == CacheMode::paged) cache.shuffle = o.seed;
  return cache;
}

// One case on a cache of its own: sequences at their depth, steps timed, everything truncated again.
class CaseRun {
 public:
  CaseRun(const model::Model& model, const kernels::Compute& on, const BenchCase& c, std::uint64_t seed)
      : model_(model), on_(on), case_(c), engine_(seed) {}

  Result<void> open(const CacheSpec& spec, const CacheOptions& options, const std::function<bool()>& go) {
    go_ = &go;
    auto cache = make_cache(spec, options);
    if (!cache) return pass(cache);
    cache_ = std::move(*cache);
    const int rows = std::max({kDepthChunk, case_.test.tokens, case_.batch});
    auto workspace = base::Buffer::allocate(model_.workspace_bytes(rows));
    if (!workspace) return pass(workspace);
    workspace_ = std::move(*workspace);
    logits_.resize(static_cast<std::size_t>(case_.batch) * static_cast<std::size_t>(model_.config().vocab) *
                   size_of(model_.dtype()));
    for (int i = 0; i < case_.batch; ++i) {
      const auto seq = fill();
      if (!seq) return pass(seq);
      seqs_.push_back(*seq);
    }
    return {};
  }

  // Seconds of every timed step.
  Result<std::vector<double>> run(int repeats) {
    const bool decode = case_.test.kind == BenchTest::Kind::decode;
    const int steps = decode ? case_.test.tokens : 1, tokens = decode ? 1 : case_.test.tokens;
    std::vector<double> seconds;
    for (int repeat = -1; repeat < repeats; ++repeat) {  // the first one warms up
      for (int i = 0; i < (repeat < 0 ? std::min(steps, kWarmUpSteps) : steps); ++i) {
        const auto took = step(seqs_, tokens, true);
        if (!took) return pass(took);
        if (repeat >= 0) seconds.push_back(*took);
      }
      for (Seq& seq : seqs_) {
        if (auto ok = rewind(seq); !ok) return pass(ok);
      }
    }
    return seconds;
  }

 private:
  // A new sequence at the case's depth.
  Result<Seq> fill() {
    const auto seq = cache_->open();
    if (!seq) return pass(seq);
    for (Pos at = 0; at < case_.depth; at += kDepthChunk) {
      const auto n = static_cast<int>(std::min<Pos>(kDepthChunk, case_.depth - at));
      if (const auto took = step({&*seq, 1}, n, false); !took) return pass(took);
    }
    return *seq;
  }

  // Back to the depth; where a window has evicted what that needs, from the start.
  Result<void> rewind(Seq& seq) {
    const auto oldest = cache_->oldest_restorable(seq);
    if (!oldest) return pass(oldest);
    if (*oldest <= case_.depth) return cache_->truncate(seq, case_.depth);
    if (auto ok = cache_->close(seq); !ok) return ok;
    const auto again = fill();
    if (!again) return pass(again);
    seq = *again;
    return {};
  }

  Result<double> step(std::span<const Seq> seqs, int tokens, bool logits) {
    if (*go_ && !(*go_)()) return fail(Code::interrupted, "interrupted");
    appends_.clear();
    rows_.clear();
    for (const Seq seq : seqs) {
      appends_.push_back({seq, tokens});
      if (logits) rows_.push_back(static_cast<int>(appends_.size()) * tokens - 1);
    }
    ids_.resize(seqs.size() * static_cast<std::size_t>(tokens));
    const auto vocab = static_cast<std::uint64_t>(model_.config().vocab);
    for (TokenId& id : ids_) id = static_cast<TokenId>(engine_() % vocab);

    const auto start = Clock::now();
    auto step = cache_->begin(appends_);
    if (!step) return pass(step);
    if (auto ok = model_.forward(on_, **step, ids_, {rows_, logits_.data()}, workspace_); !ok) return pass(ok);
    (*step)->commit();
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  const model::Model& model_;
  kernels::Compute on_;
  BenchCase case_;
  std::mt19937_64 engine_;
  const std::function<bool()>* go_ = nullptr;
  std::unique_ptr<Cache> cache_;
  base::Buffer workspace_;
  std::vector<Seq> seqs_;
  std::vector<Append> appends_;
  std::vector<TokenId> ids_;
  std::vector<int> rows_;
  std::vector<std::byte> logits_;
};

struct Tools {
  const BenchOptions& options;
  const BenchCallbacks& callbacks;
  kernels::Compute on;
  LimitsMeter& meter;

  void progress(std::string_view what) const {
    if (callbacks.on_progress) callbacks.on_progress(what);
  }
};

// A loaded model and how its cache stores.
struct Subject {
  const model::Model& model;
  CacheSpec cache;
  std::string kv;
};

Result<BenchRow> run_case(const Tools& tools, const Subject& subject, const BenchCase& c) {
  const model::Model& model = subject.model;
  BenchRow row{c, model.weights(), subject.kv, tools.options.threads, 0, {}, {}};
  row.work = work_of_case({model.config(), model.weights(), subject.cache}, c);
  tools.progress(fmt::format("{} {}, cache {}, depth {}, batch {}", name_of(row.dtype), name_of(c.test), row.kv,
                             c.depth, c.batch));
  const auto bytes = static_cast<std::size_t>(row.work.bytes());
  CaseRun run(model, tools.on, c, tools.options.seed);
  if (auto ok = run.open(subject.cache, cache_of(tools.options, c), tools.callbacks.keep_going); !ok) return pass(ok);
  const auto before = tools.meter.measure(bytes, row.dtype);
  if (!before) return pass(before);
  const auto seconds = run.run(tools.options.repeats);
  if (!seconds) return pass(seconds);
  row.ms = median(*seconds) * 1e3;
  row.limits = *before;
  for (int look = 0; look == 0 || (look <= kSecondLooks && row.of_bound() > kMostOfBound); ++look) {
    const auto after = tools.meter.measure(bytes, row.dtype);
    if (!after) return pass(after);
    row.limits = better(row.limits, *after);
  }
  return row;
}

// The caches that the options ask for.
Result<std::vector<Subject>> subjects_of(const BenchOptions& options, const model::Model& model) {
  EngineOptions choice;
  choice.span = options.span;
  std::vector<Subject> subjects;
  const auto add = [&](std::string kv) -> Result<void> {
    auto spec = engine::with_choices(model.cache_spec(), choice);
    if (!spec) return pass(spec);
    subjects.push_back({model, std::move(*spec), std::move(kv)});
    return {};
  };
  for (const KvCodecs& kv : options.kv) {
    choice.kv = {kv};
    if (auto ok = add(engine::words_of(kv)); !ok) return pass(ok);
  }
  if (options.kv.empty()) {
    if (auto ok = add(name_of(model.dtype())); !ok) return pass(ok);
  }
  return subjects;
}

Result<void> run_dtype(const Tools& tools, DType dtype, const std::vector<BenchCase>& cases, BenchReport& report) {
  const auto loaded = engine::load(tools.options.model, dtype, [&](double fraction) {
    tools.progress(fmt::format("loading {} {} %", name_of(dtype), static_cast<int>(fraction * 100)));
    return !tools.callbacks.keep_going || tools.callbacks.keep_going();
  });
  if (!loaded) return pass(loaded);
  const auto subjects = subjects_of(tools.options, *loaded->model);
  if (!subjects) return pass(subjects);
  const auto kernel = tools.meter.matmul_gflop_s(dtype);
  if (!kernel) return pass(kernel);
  const std::size_t peak_at = report.peaks.size();
  report.peaks.push_back({dtype, 0, *kernel});
  for (int look = 0; look <= kSecondLooks && report.peaks[peak_at].peak_gflop_s < *kernel; ++look) {
    report.peaks[peak_at].peak_gflop_s = std::max(report.peaks[peak_at].peak_gflop_s, tools.meter.peak_gflop_s(dtype));
  }
  // The caches of a case side by side: in the same minute of the machine.
  for (const BenchCase& c : cases) {
    for (const Subject& subject : *subjects) {
      const auto row = run_case(tools, subject, c);
      if (!row) return pass(row);
      report.rows.push_back(*row);
      report.peaks[peak_at].peak_gflop_s = std::max(report.peaks[peak_at].peak_gflop_s, row->limits.peak_gflop_s);
      if (tools.callbacks.on_row) tools.callbacks.on_row(*row);
    }
  }
  return {};
}

}  // namespace

std::string name_of(const BenchTest& test) {
  return fmt::format("{}{}", test.kind == BenchTest::Kind::prefill ? "pp" : "tg", test.tokens);
}

double BenchRow::tok_s() const {
  return (at.test.kind == BenchTest::Kind::prefill ? at.test.tokens : at.batch) / ms * 1e3;
}

Result<std::vector<BenchCase>> bench_cases(const BenchOptions& options, Pos context) {
  std::vector<BenchCase> cases;
  for (const BenchTest& asked : options.tests) {
    const bool decode = asked.kind == BenchTest::Kind::decode;
    for (const int batch : decode ? options.batches : std::vector<int>{1}) {
      for (const Pos asked_depth : options.depths) {
        if (asked_depth >= context) {
          return fail(Code::invalid_argument,
                      fmt::format("depth {} leaves no room for {} in the model's context of {} tokens", asked_depth,
                                  name_of(asked), context));
        }
        const Pos longest = std::min<Pos>(asked.tokens, context);
        const Pos depth = asked_depth == kNearLimit ? context - longest : asked_depth;
        const auto tokens = static_cast<int>(std::min(longest, context - depth));
        const BenchCase c{{asked.kind, tokens}, depth, batch};
        if (std::find(cases.begin(), cases.end(), c) == cases.end()) cases.push_back(c);
      }
    }
  }
  return cases;
}

std::vector<std::string> bench_faults(const BenchReport& report) {
  std::vector<std::string> faults;
  for (const BenchRow& row : report.rows) {
    // Written so that a bound or time that is no number is a fault too.
    if (row.of_bound() <= kMostOfBound) continue;
    faults.push_back(fmt::format("{} {}, cache {}, depth {}, batch {}: {:.3f} ms is {:.1f} % of its bound of {:.3f} ms",
                                 name_of(row.dtype), name_of(row.at.test), row.kv, row.at.depth, row.at.batch, row.ms,
                                 row.of_bound() * 100, row.bound()));
  }
  for (const BenchPeak& peak : report.peaks) {
    if (peak.kernel_gflop_s <= peak.peak_gflop_s) continue;
    faults.push_back(fmt::format("{}: a matmul reaches {:.1f} GFLOP/s, more than the peak loop's {:.1f}",
                                 name_of(peak.dtype), peak.kernel_gflop_s, peak.peak_gflop_s));
  }
  return faults;
}

Result<void> bench(const BenchOptions& options, const BenchCallbacks& callbacks, BenchReport& report) {
  if (options.cache == CacheMode::none) {
    return fail(Code::invalid_argument, "without a cache there is no depth to measure: --cache none is for generate");
  }
  const BenchOptions plain;
  if (options.cache != CacheMode::paged &&
      (options.page_tokens != plain.page_tokens || options.pool_tokens != plain.pool_tokens)) {
    return fail(Code::invalid_argument,
                fmt::format("pages and a pool are of a paged cache, and this one is {}", name_of(options.cache)));
  }
  const auto config = engine::config_of(options.model);
  if (!config) return pass(config);
  const auto cases = bench_cases(options, config->context);
  if (!cases) return pass(cases);
  base::ThreadPool pool(options.threads);
  const kernels::Compute on{&pool, &kernels::targets().front()};
  LimitsMeter meter(on);
  const Tools tools{options, callbacks, on, meter};
  for (const DType dtype : options.dtypes) {
    if (auto ok = run_dtype(tools, dtype, *cases, report); !ok) return ok;
  }
  return {};
}

}  // namespace stet::lab
