#include "lab/contexts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/memory.hpp"
#include "base/thread_pool.hpp"
#include "engine/loaded.hpp"
#include "lab/bench_work.hpp"

namespace stet::lab {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Pos kFillChunk = 256;   // tokens of the steps that fill a cache; not timed
constexpr int kCachedTries = 10;  // for each try of an uncached form, which takes so much longer

double multiply_adds(const model::Model& model, Pos depth, Pos tokens) {
  const CacheSpec spec = model.cache_spec();
  const WorkOf of{model.config(), model.weights(), spec};
  return work_of(of, {depth, static_cast<int>(tokens), 1}).operations() / 2;
}

// One model behind one context after the other.
class Stopwatch {
 public:
  Stopwatch(const model::Model& model, base::ThreadPool& pool, const ContextOptions& options,
            const ContextCallbacks& callbacks)
      : model_(model), pool_(pool), options_(options), callbacks_(callbacks) {}

  struct Fastest {
    double ms = 0;
    Split split;
    std::vector<std::byte> logits;
  };

  // The fastest of several steps behind a context, the last token of which is the step's.
  Result<Fastest> run(Form form, Pos context) {
    if (callbacks_.on_progress) callbacks_.on_progress(fmt::format("context {}, {}", context, name_of(form)));
    FormOptions o;
    o.form = form;
    o.max_len = context;
    o.prefill_chunk = kFillChunk;
    if (!is_cached(form)) o.wrap = options_.wrap;
    if (auto ok = engine::check_memory(options_.model, {0, 0, most_bytes(model_, o)}); !ok) return pass(ok);
    auto runner = FormRun::make(model_, pool_, o);
    if (!runner) return pass(runner);
    runner->keep_going = callbacks_.keep_going;
    const Ids ids = random_ids(model_.config(), context, options_.seed, kFormsStream);
    if (is_cached(form) && context > 1) {
      if (const auto filled = runner->step(std::span(ids).first(ids.size() - 1)); !filled) return pass(filled);
    }
    kernels::Profile profile;
    runner->profile = &profile;
    Fastest fastest;
    const int tries = is_cached(form) ? options_.tries * kCachedTries : options_.tries;
    for (int i = 0; i < tries; ++i) {
      if (i > 0) {
        if (auto ok = runner->cut(context - 1); !ok) return pass(ok);
      }
      profile = {};
      const auto start = Clock::now();
      const auto logits = runner->step(ids);
      const double ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
      if (!logits) return pass(logits);
      if (i > 0 && ms >= fastest.ms) continue;
      const Split split{profile.weights_s * 1e3, profile.attention_s * 1e3, profile.head_s * 1e3, 0};
      fastest = {ms, split, {logits->begin(), logits->end()}};
      fastest.split.rest = ms - split.weights - split.attention - split.head;
    }
    return fastest;
  }

 private:
  const model::Model& model_;
  base::ThreadPool& pool_;
  const ContextOptions& options_;
  const ContextCallbacks& callbacks_;
};

std::vector<Pos> contexts_up_to(Pos limit) {
  std::vector<Pos> contexts;
  for (Pos context = 16; context <= limit; context *= 2) {
    contexts.push_back(context);
    if (context == 512 && limit >= 768) contexts.push_back(768);
  }
  if (contexts.empty() || contexts.back() * 3 / 2 <= limit) contexts.push_back(limit);
  return contexts;
}

// Where attention's time passes that of the rest.
std::optional<double> crossing(const std::vector<ContextRow>& rows) {
  const auto excess = [](const ContextRow& row) { return std::log(row.split.attention / row.split.others()); };
  for (std::size_t i = rows.size(); i-- > 1;) {  // the last time: short rows are noise
    const double a = excess(rows[i - 1]), b = excess(rows[i]);
    if (!(a < 0) || !(b >= 0)) continue;
    const double x = std::log(static_cast<double>(rows[i - 1].context)),
                 y = std::log(static_cast<double>(rows[i].context));
    return std::exp(x + (y - x) * -a / (b - a));
  }
  return std::nullopt;
}

// Multiply-adds: those of a token's matrices over those of attention for each token before it.
void count_bends(const model::Model& model, ContextReport& report) {
  const ModelConfig& c = model.config();
  double layer = 0;
  for (const auto& matrix : model::layer_matrices(c)) layer += static_cast<double>(matrix.in) * matrix.out;
  const double attention = 2.0 * c.heads * c.head_dim * c.layers, head = static_cast<double>(c.width) * c.vocab;
  report.bend_layers = c.layers * layer / attention;
  report.bend_with_head = (c.layers * layer + head) / attention;
}

// Of the layers, which is where the time goes: vocabularies may differ.
bool same_shape(const ModelConfig& a, const ModelConfig& b) {
  return a.family == b.family && a.layers == b.layers && a.width == b.width && a.heads == b.heads &&
         a.kv_heads == b.kv_heads && a.head_dim == b.head_dim && a.inner == b.inner;
}

// The second write-up's character GPT.
bool is_published(const ModelConfig& c, DType dtype) {
  return dtype == DType::f64 && c.family == "gpt2" && c.layers == 4 && c.width == 128 && c.heads == 4 && c.inner == 512;
}

// Whether there is a trained model to compare with.
Result<bool> has_trained(const ContextOptions& options, const ModelConfig& config) {
  if (options.trained.empty()) return false;
  if (options.trained.starts_with("random:")) {
    return fail(Code::invalid_argument, fmt::format("{} is not trained: a model's folder is needed", options.trained));
  }
  const auto trained = engine::config_of(options.trained);
  if (!trained) return pass(trained);
  const bool alike = same_shape(*trained, config);
  if (alike || !options.trained_must_fit) return alike;
  return fail(Code::invalid_argument,
              fmt::format("{} has layers of another shape than {}", options.trained, options.model));
}

Result<engine::Loaded> load(const std::string& model, DType dtype, const ContextCallbacks& callbacks) {
  return engine::load(model, dtype, [&](double) { return !callbacks.keep_going || callbacks.keep_going(); });
}

// The cached step by a trained model, and by random weights of the very same shape.
Result<void> compare_with_trained(base::ThreadPool& pool, const ContextCallbacks& callbacks, ContextReport& report) {
  const ContextOptions& o = report.options;
  const auto trained = load(o.trained, o.dtype, callbacks);
  if (!trained) return pass(trained);
  const auto random = load(fmt::format("random:{}/config.json", o.trained), o.dtype, callbacks);
  if (!random) return pass(random);
  Stopwatch of_trained(*trained->model, pool, o, callbacks), of_random(*random->model, pool, o, callbacks);
  for (ContextRow& row : report.rows) {
    if (row.context > trained->model->config().context) continue;
    const auto one = of_trained.run(Form::contiguous, row.context);
    if (!one) return pass(one);
    const auto other = of_random.run(Form::contiguous, row.context);
    if (!other) return pass(other);
    row.trained_ms = one->ms;
    row.random_ms = other->ms;
  }
  return {};
}

}  // namespace

std::optional<double> ContextRow::speed_up() const {
  if (!by_rows_ms) return std::nullopt;
  return *by_rows_ms / cached_ms;
}

Result<ContextReport> by_context(const ContextOptions& options, const ContextCallbacks& callbacks) {
  ContextReport report;
  report.options = options;
  const auto config = engine::config_of(options.model);
  if (!config) return pass(config);
  if (report.options.contexts.empty()) report.options.contexts = contexts_up_to(config->context);
  auto& sorted = report.options.contexts;
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  for (const Pos context : report.options.contexts) {
    if (context < 1 || context > config->context) {
      return fail(Code::invalid_argument,
                  fmt::format("a context of {} is not within the model's 1 to {}", context, config->context));
    }
  }
  const auto trained = has_trained(options, *config);
  if (!trained) return pass(trained);
  if (!*trained) report.options.trained.clear();
  report.published_shape = is_published(*config, options.dtype);
  const auto loaded = load(options.model, options.dtype, callbacks);
  if (!loaded) return pass(loaded);
  const model::Model& model = *loaded->model;
  base::ThreadPool pool(options.threads);
  Stopwatch stopwatch(model, pool, report.options, callbacks);
  for (const Pos context : report.options.contexts) {
    ContextRow row;
    row.context = context;
    const auto cached = stopwatch.run(Form::contiguous, context);
    if (!cached) return pass(cached);
    row.cached_ms = cached->ms;
    row.split = cached->split;
    row.cached_madds = multiply_adds(model, context - 1, 1);
    row.uncached_madds = multiply_adds(model, 0, context);
    for (const auto& [form, ms] : {std::pair{Form::by_rows, &row.by_rows_ms}, {Form::at_once, &row.at_once_ms}}) {
      if (context > options.most_uncached) continue;
      const auto uncached = stopwatch.run(form, context);
      if (!uncached) return pass(uncached);
      *ms = uncached->ms;
      ++report.compared;
      if (uncached->logits.size() != cached->logits.size() ||
          std::memcmp(uncached->logits.data(), cached->logits.data(), cached->logits.size()) != 0) {
        ++report.different;
      }
    }
    report.rows.push_back(row);
  }
  count_bends(model, report);
  report.bend_measured = crossing(report.rows);
  if (!report.options.trained.empty()) {
    if (auto ok = compare_with_trained(pool, callbacks, report); !ok) return pass(ok);
  }
  return report;
}

namespace {

// One row of the table of memory.
struct Case {
  const char *what, *field;
  Form form;
  bool prefill = false, hold_scores = false;
  Pos chunk = 0;
};

Result<MemoryRow> run_case(const model::Model& model, base::ThreadPool& pool, const MemoryOptions& o, const Case& c,
                           const ContextCallbacks& callbacks, std::vector<std::byte>& logits_out) {
  if (callbacks.on_progress) callbacks.on_progress(c.what);
  MemoryRow row;
  row.what = c.what;
  row.field = c.field;
  row.prefill = c.prefill;
  FormOptions form;
  form.form = c.form;
  form.max_len = o.context;
  form.prefill_chunk = c.prefill ? c.chunk : kFillChunk;
  form.hold_scores = c.hold_scores;
  if (!is_cached(c.form)) form.wrap = o.wrap;
  const auto need = static_cast<double>(most_bytes(model, form));
  if (const auto there = base::available_memory(); there && need > static_cast<double>(*there)) {
    row.skipped = fmt::format("needs {:.1f} GB, {:.1f} GB are there", need / 1e9, static_cast<double>(*there) / 1e9);
    return row;
  }
  const Ids ids = random_ids(model.config(), o.context, o.seed, kFormsStream);
  const bool reset = base::reset_peak_memory();
  const std::uint64_t before = base::peak_memory().value_or(0);
  auto runner = FormRun::make(model, pool, form);
  if (!runner) return pass(runner);
  runner->keep_going = callbacks.keep_going;
  if (!c.prefill && is_cached(c.form) && o.context > 1) {
    if (const auto filled = runner->step(std::span(ids).first(ids.size() - 1)); !filled) return pass(filled);
  }
  const auto start = Clock::now();
  const auto logits = runner->step(ids);
  if (!logits) return pass(logits);
  row.ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  row.cache_bytes = runner->cache_bytes();
  row.activation_bytes = runner->activation_bytes();
  row.score_bytes = runner->score_bytes();
  const std::uint64_t after = base::peak_memory().value_or(0);
  if (reset && after > before) row.process_peak = after - before;
  logits_out.assign(logits->begin(), logits->end());
  return row;
}

}  // namespace

Result<MemoryReport> memory_of_forms(const MemoryOptions& options, const ContextCallbacks& callbacks) {
  MemoryReport report;
  report.options = options;
  const auto config = engine::config_of(options.model);
  if (!config) return pass(config);
  report.published_shape = is_published(*config, options.dtype);
  Pos& context = report.options.context;
  constexpr Pos kPublished = 2048;
  if (context == 0) context = std::min<Pos>(kPublished, config->context);
  if (context < 2 || context > config->context) {
    return fail(Code::invalid_argument,
                fmt::format("a context of {} is not within the model's 2 to {}", context, config->context));
  }
  const auto loaded = load(options.model, options.dtype, callbacks);
  if (!loaded) return pass(loaded);
  base::ThreadPool pool(options.threads);
  const Case cases[] = {
      {"a step without a cache, all scores at once", "step_at_once", Form::at_once},
      {"a step without a cache, rows of scores", "step_by_rows", Form::by_rows},
      {"a step with the cache", "step_cached", Form::contiguous},
      {"filling the cache in one call, all scores", "prefill_at_once", Form::contiguous, true, true, 0},
      {"filling the cache in one call, by blocks", "prefill_one_call", Form::contiguous, true, false, 0},
      {"filling the cache in chunks", "prefill_chunks", Form::contiguous, true, false, options.prefill_chunk},
  };
  std::vector<std::byte> first;
  for (const Case& c : cases) {
    std::vector<std::byte> logits;
    auto row = run_case(*loaded->model, pool, report.options, c, callbacks, logits);
    if (!row) return pass(row);
    report.rows.push_back(std::move(*row));
    if (logits.empty()) continue;
    if (first.empty()) {
      first = std::move(logits);
      continue;
    }
    ++report.compared;
    if (first.size() != logits.size() || std::memcmp(first.data(), logits.data(), first.size()) != 0)
      ++report.different;
  }
  return report;
}

}  // namespace stet::lab
