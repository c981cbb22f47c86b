#include "lab/eval.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <span>

#include "base/thread_pool.hpp"
#include "engine/loaded.hpp"
#include "lab/eval_reader.hpp"
#include "lab/eval_score.hpp"
#include "stet/cache.hpp"

namespace stet::lab {
namespace {

struct Work {
  EvalSubject reference;
  std::span<const TokenId> ids;
  Pos window;
  base::ThreadPool* pool;
  const EvalCallbacks* callbacks;
};

// The last token of a window is predicted but never read.
Result<void> score_window(const Work& work, std::span<const TokenId> ids, EvalReader& a, EvalReader* b,
                          Totals& totals) {
  const kernels::Compute on{work.pool, &kernels::targets().front()};
  if (auto ok = a.rewind(); !ok) return ok;
  if (b != nullptr) {
    if (auto ok = b->rewind(); !ok) return ok;
  }
  std::vector<Score> scores;
  for (std::size_t at = 0; at + 1 < ids.size(); at += kEvalChunk) {
    if (work.callbacks->keep_going && !work.callbacks->keep_going()) return fail(Code::interrupted, "interrupted");
    const auto chunk = ids.subspan(at, std::min<std::size_t>(kEvalChunk, ids.size() - 1 - at));
    if (auto ok = a.read(on, chunk); !ok) return ok;
    if (b != nullptr) {
      if (auto ok = b->read(on, chunk); !ok) return ok;
    }
    scores.assign(chunk.size(), {});
    work.pool->run(chunk.size(), [&](std::size_t r) {
      scores[r] = score(a.row(r), b != nullptr ? b->row(r) : a.row(r), static_cast<std::size_t>(ids[at + r + 1]));
    });
    for (std::size_t r = 0; r < scores.size(); ++r) {
      if (!scores[r].finite) {
        return fail(Code::corrupt, fmt::format("the logits at position {} of a window are not finite: nothing can be "
                                               "said about their quality",
                                               at + r));
      }
      totals.add(scores[r]);
    }
  }
  return {};
}

// `other` beside the reference; null: the reference alone.
Result<Totals> score_all(const Work& work, const EvalSubject* other) {
  auto a = EvalReader::make(work.reference, work.window);
  if (!a) return pass(a);
  std::optional<EvalReader> b;
  if (other != nullptr) {
    auto made = EvalReader::make(*other, work.window);
    if (!made) return pass(made);
    b = std::move(*made);
  }
  const std::string& name = other != nullptr ? other->name : work.reference.name;
  const auto window = static_cast<std::size_t>(work.window);
  Totals totals;
  for (std::size_t at = 0; at < work.ids.size(); at += window) {
    if (work.callbacks->on_progress)
      work.callbacks->on_progress(fmt::format("{}: {} of {} tokens", name, at, work.ids.size()));
    const auto ids = work.ids.subspan(at, std::min(window, work.ids.size() - at));
    if (auto ok = score_window(work, ids, *a, b ? &*b : nullptr, totals); !ok) {
      return fail(ok.error().code,
                  other != nullptr ? fmt::format("{}: {}", name, ok.error().message) : ok.error().message);
    }
  }
  return totals;
}

Result<EvalRow> row_of(const Totals& totals, const EvalSubject& subject) {
  const auto n = static_cast<double>(totals.scored);
  EvalRow row;
  row.dtype = subject.model->weights();
  row.kv = subject.kv;
  row.nll = totals.nll / n;
  row.perplexity = std::exp(row.nll);
  row.kl = totals.kl / n;
  row.top1 = static_cast<double>(totals.same_top) / n;
  row.max_logit_distance = totals.distance;
  row.max_logit_relative = totals.largest > 0 ? totals.distance / totals.largest : 0;
  row.weight_bytes = subject.model->weight_bytes();
  CacheOptions one;
  one.max_len = 1;
  const auto plan = plan_cache(subject.cache, one);
  if (!plan) return pass(plan);
  row.cache_bytes_per_token = plan->bytes_per_token;
  return row;
}

// Scores `other` (null: nothing) beside the reference, whose row comes first in the report.
Result<void> add_row(const Work& work, const EvalSubject* other, EvalReport& report) {
  auto totals = score_all(work, other);
  if (!totals) return pass(totals);
  if (other != nullptr) {
    auto row = row_of(*totals, *other);
    if (!row) return pass(row);
    report.rows.push_back(std::move(*row));
  }
  totals->nll = totals->nll_reference;
  totals->kl = totals->distance = 0;
  totals->same_top = totals->scored;
  auto row = row_of(*totals, work.reference);
  if (!row) return pass(row);
  report.rows.front() = std::move(*row);
  report.scored = totals->scored;
  return {};
}

// The tokens that are read and the windows they are read in.
Result<std::vector<TokenId>> plan_windows(const EvalOptions& options, const EvalInput& input,
                                          const engine::Loaded& loaded, EvalReport& report) {
  auto ids = eval_ids(input, loaded);
  if (!ids) return pass(ids);
  if (options.tokens > 0 && static_cast<Pos>(ids->size()) > options.tokens)
    ids->resize(static_cast<std::size_t>(options.tokens));
  if (ids->size() < 2) {
    return fail(Code::invalid_argument,
                fmt::format("{} has {} token{}: at least 2 are needed, one to predict the other", input.name,
                            ids->size(), ids->size() == 1 ? "" : "s"));
  }
  const Pos context = loaded.model->config().context;
  report.tokens = static_cast<Pos>(ids->size());
  report.window = options.window > 0 ? options.window : context;
  if (report.window < 2 || report.window > context) {
    return fail(Code::invalid_argument,
                fmt::format("windows of {} tokens: must be 2 to the model's context of {}", report.window, context));
  }
  return ids;
}

// The same model on caches of each codec.
Result<void> compare_codecs(const Work& work, std::span<const KvCodecs> all, EvalReport& report) {
  for (const KvCodecs& kv : all) {
    const auto other = eval_subject(*work.reference.model, kv);
    if (!other) return pass(other);
    if (auto ok = add_row(work, &*other, report); !ok) return ok;
  }
  return {};
}

}  // namespace

Result<EvalReport> evaluate(const EvalOptions& options, const EvalInput& input, const EvalCallbacks& callbacks) {
  if (!options.kv.empty() && options.dtypes.size() != 1) {
    return fail(Code::invalid_argument, fmt::format("codecs of the cache are compared with weights of one type, not {}",
                                                    options.dtypes.size()));
  }
  const auto load = [&](DType dtype) {
    return engine::load(options.model, dtype, [&](double fraction) {
      if (callbacks.on_progress) {
        callbacks.on_progress(fmt::format("{}: loading {} %", name_of(dtype), static_cast<int>(fraction * 100)));
      }
      return !callbacks.keep_going || callbacks.keep_going();
    });
  };
  auto reference = load(options.kv.empty() ? DType::f32 : options.dtypes.front());
  if (!reference) return pass(reference);
  EvalReport report;
  auto ids = plan_windows(options, input, *reference, report);
  if (!ids) return pass(ids);
  base::ThreadPool pool(options.threads > 0 ? options.threads : base::available_cpus());
  const Work work{eval_subject(*reference->model), *ids, std::min(report.window, report.tokens), &pool, &callbacks};
  report.rows.resize(1);
  if (!options.kv.empty()) {
    if (auto ok = compare_codecs(work, options.kv, report); !ok) return pass(ok);
    return report;
  }
  for (const DType dtype : options.dtypes) {
    if (dtype == DType::f32) continue;
    auto other = load(dtype);
    if (!other) return pass(other);
    const EvalSubject subject = eval_subject(*other->model);
    if (auto ok = add_row(work, &subject, report); !ok) return pass(ok);
  }
  if (report.rows.size() == 1) {
    if (auto ok = add_row(work, nullptr, report); !ok) return pass(ok);
  }
  return report;
}

}  // namespace stet::lab
