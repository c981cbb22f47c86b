#include "lab/eval.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <span>

#include "base/thread_pool.hpp"
#include "engine/loaded.hpp"
#include "sample/weights.hpp"
#include "stet/cache.hpp"

namespace stet::lab {
namespace {

// Rows of a step: enough for the kernels' tiles, and of a vocabulary of 50,000 two times 13 MB of logits.
constexpr Pos kChunk = 64;

// One position: how two models predict the token that came.
struct Score {
  double nll_reference = 0, nll = 0, kl = 0, distance = 0, largest = 0;
  bool same_top = false, finite = false;
};

// Probabilities of a row by log-softmax in double.
struct Softmax {
  std::vector<double> x, p;  // logits; probabilities
  double largest = 0, log_sum = 0;
  std::size_t top = 0;

  double log_p(std::size_t i) const { return x[i] - largest - log_sum; }
};

bool all_finite(const std::vector<double>& x) {
  return std::all_of(x.begin(), x.end(), [](double v) { return std::isfinite(v); });
}

Softmax softmax(std::vector<double> x) {
  Softmax s;
  s.x = std::move(x);
  s.p.resize(s.x.size());
  s.top = static_cast<std::size_t>(std::max_element(s.x.begin(), s.x.end()) - s.x.begin());
  s.largest = s.x[s.top];
  sample::weights(s.x.data(), s.x.size(), s.largest, 1, s.p.data());
  double sum = 0;
  for (const double e : s.p) sum += e;
  for (double& e : s.p) e /= sum;
  s.log_sum = std::log(sum);  // libm's: this is a report, whose last digits nobody compares
  return s;
}

Score score(std::vector<double> reference, std::vector<double> other, std::size_t next) {
  Score score;
  score.finite = all_finite(reference) && all_finite(other);
  if (!score.finite) return score;
  const Softmax a = softmax(std::move(reference)), b = softmax(std::move(other));
  score.nll_reference = -a.log_p(next);
  score.nll = -b.log_p(next);
  score.same_top = a.top == b.top;
  for (std::size_t i = 0; i < a.x.size(); ++i) {
    score.kl += a.p[i] * (a.log_p(i) - b.log_p(i));
    score.distance = std::max(score.distance, std::abs(a.x[i] - b.x[i]));
    score.largest = std::max(score.largest, std::abs(a.x[i]));
  }
  score.kl = std::max(score.kl, 0.0);  // it is not negative; rounding can make it so by 1e-16
  return score;
}

// A model with what a forward needs.
class Reader {
 public:
  static Result<Reader> make(const model::Model& model, Pos window) {
    Reader reader(model);
    CacheOptions options;
    options.max_len = window;
    auto cache = make_cache(model.cache_spec(), options);
    if (!cache) return pass(cache);
    reader.cache_ = std::move(*cache);
    auto seq = reader.cache_->open();
    if (!seq) return pass(seq);
    reader.seq_ = *seq;
    auto workspace = base::Buffer::allocate(model.workspace_bytes(static_cast<int>(kChunk)));
    if (!workspace) return pass(workspace);
    reader.workspace_ = std::move(*workspace);
    auto logits = base::Buffer::allocate(static_cast<std::size_t>(kChunk) * reader.vocab() * size_of(model.dtype()));
    if (!logits) return pass(logits);
    reader.logits_ = std::move(*logits);
    return reader;
  }

  Result<void> rewind() { return cache_->truncate(seq_, 0); }

  // Appends the ids, at most kChunk, and keeps the logits of all of them.
  Result<void> read(const kernels::Compute& on, std::span<const TokenId> ids) {
    const Append append{seq_, static_cast<int>(ids.size())};
    auto step = cache_->begin({&append, 1});
    if (!step) return pass(step);
    std::vector<int> rows(ids.size());
    for (std::size_t r = 0; r < rows.size(); ++r) rows[r] = static_cast<int>(r);
    if (auto ok = model_->forward(on, **step, ids, {rows, logits_.data()}, workspace_); !ok) return ok;
    (*step)->commit();
    return {};
  }

  std::vector<double> row(std::size_t r) const {
    const std::size_t n = vocab();
    if (model_->dtype() == DType::f64) return {logits_.as<double>() + r * n, logits_.as<double>() + (r + 1) * n};
    return {logits_.as<float>() + r * n, logits_.as<float>() + (r + 1) * n};
  }

 private:
  explicit Reader(const model::Model& model) : model_(&model) {}
  std::size_t vocab() const { return static_cast<std::size_t>(model_->config().vocab); }

  const model::Model* model_;
  std::unique_ptr<Cache> cache_;
  Seq seq_;
  base::Buffer workspace_, logits_;
};

// Sums over positions, in the order of the text.
struct Totals {
  double nll_reference = 0, nll = 0, kl = 0, distance = 0, largest = 0;
  Pos scored = 0, same_top = 0;

  void add(const Score& s) {
    nll_reference += s.nll_reference;
    nll += s.nll;
    kl += s.kl;
    distance = std::max(distance, s.distance);
    largest = std::max(largest, s.largest);
    ++scored;
    same_top += s.same_top ? 1 : 0;
  }
};

struct Work {
  const model::Model* reference;
  std::span<const TokenId> ids;
  Pos window;
  base::ThreadPool* pool;
  const EvalCallbacks* callbacks;
};

// The last token of a window is predicted but never read.
Result<void> score_window(const Work& work, std::span<const TokenId> ids, Reader& a, Reader* b, Totals& totals) {
  const kernels::Compute on{work.pool, &kernels::targets().front()};
  if (auto ok = a.rewind(); !ok) return ok;
  if (b != nullptr) {
    if (auto ok = b->rewind(); !ok) return ok;
  }
  std::vector<Score> scores;
  for (std::size_t at = 0; at + 1 < ids.size(); at += kChunk) {
    if (work.callbacks->keep_going && !work.callbacks->keep_going()) return fail(Code::interrupted, "interrupted");
    const auto chunk = ids.subspan(at, std::min<std::size_t>(kChunk, ids.size() - 1 - at));
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
Result<Totals> score_all(const Work& work, const model::Model* other) {
  auto a = Reader::make(*work.reference, work.window);
  if (!a) return pass(a);
  std::optional<Reader> b;
  if (other != nullptr) {
    auto made = Reader::make(*other, work.window);
    if (!made) return pass(made);
    b = std::move(*made);
  }
  const char* name = name_of(other != nullptr ? other->weights() : work.reference->weights());
  const auto window = static_cast<std::size_t>(work.window);
  Totals totals;
  for (std::size_t at = 0; at < work.ids.size(); at += window) {
    if (work.callbacks->on_progress)
      work.callbacks->on_progress(fmt::format("{}: {} of {} tokens", name, at, work.ids.size()));
    const auto ids = work.ids.subspan(at, std::min(window, work.ids.size() - at));
    if (auto ok = score_window(work, ids, *a, b ? &*b : nullptr, totals); !ok) return pass(ok);
  }
  return totals;
}

EvalRow row_of(const Totals& totals, const model::Model& model) {
  const auto n = static_cast<double>(totals.scored);
  EvalRow row;
  row.dtype = model.weights();
  row.nll = totals.nll / n;
  row.perplexity = std::exp(row.nll);
  row.kl = totals.kl / n;
  row.top1 = static_cast<double>(totals.same_top) / n;
  row.max_logit_distance = totals.distance;
  row.max_logit_relative = totals.largest > 0 ? totals.distance / totals.largest : 0;
  row.weight_bytes = model.weight_bytes();
  return row;
}

Result<std::vector<TokenId>> ids_of(const EvalInput& input, const engine::Loaded& loaded) {
  std::vector<TokenId> ids = input.ids;
  if (input.is_text) {
    if (!loaded.tokenizer) {
      const std::string& why = loaded.no_tokenizer;
      return fail(Code::unsupported,
                  fmt::format("{} has no tokenizer to read {} with{}: give token ids (--ids)", loaded.name, input.name,
                              why.empty() ? "" : fmt::format(" ({})", why)));
    }
    auto encoded = loaded.tokenizer->encode(input.text);
    if (!encoded) return fail(encoded.error().code, fmt::format("{}: {}", input.name, encoded.error().message));
    ids = std::move(*encoded);
  }
  const int vocab = loaded.model->config().vocab;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab) continue;
    return fail(Code::invalid_argument, fmt::format("{}: token {} has id {}, which is not in the vocabulary of {}",
                                                    input.name, i + 1, ids[i], vocab));
  }
  return ids;
}

}  // namespace

Result<EvalReport> evaluate(const EvalOptions& options, const EvalInput& input, const EvalCallbacks& callbacks) {
  const auto load = [&](DType dtype) {
    return engine::load(options.model, dtype, [&](double fraction) {
      if (callbacks.on_progress) {
        callbacks.on_progress(fmt::format("{}: loading {} %", name_of(dtype), static_cast<int>(fraction * 100)));
      }
      return !callbacks.keep_going || callbacks.keep_going();
    });
  };
  auto reference = load(DType::f32);
  if (!reference) return pass(reference);
  auto ids = ids_of(input, *reference);
  if (!ids) return pass(ids);
  if (options.tokens > 0 && static_cast<Pos>(ids->size()) > options.tokens)
    ids->resize(static_cast<std::size_t>(options.tokens));
  if (ids->size() < 2) {
    return fail(Code::invalid_argument,
                fmt::format("{} has {} token{}: at least 2 are needed, one to predict the other", input.name,
                            ids->size(), ids->size() == 1 ? "" : "s"));
  }
  const Pos context = reference->model->config().context;
  EvalReport report;
  report.tokens = static_cast<Pos>(ids->size());
  report.window = options.window > 0 ? options.window : context;
  if (report.window < 2 || report.window > context) {
    return fail(Code::invalid_argument,
                fmt::format("windows of {} tokens: must be 2 to the model's context of {}", report.window, context));
  }
  base::ThreadPool pool(options.threads > 0 ? options.threads : base::available_cpus());
  const Work work{reference->model.get(), *ids, std::min(report.window, report.tokens), &pool, &callbacks};
  report.rows.resize(1);
  for (const DType dtype : options.dtypes) {
    if (dtype == DType::f32) continue;
    auto other = load(dtype);
    if (!other) return pass(other);
    auto totals = score_all(work, other->model.get());
    if (!totals) return fail(totals.error().code, fmt::format("{}: {}", name_of(dtype), totals.error().message));
    report.rows.push_back(row_of(*totals, *other->model));
    totals->nll = totals->nll_reference;
    totals->kl = totals->distance = 0;
    totals->same_top = totals->scored;
    report.rows.front() = row_of(*totals, *work.reference);
    report.scored = totals->scored;
  }
  if (report.rows.size() == 1) {
    auto totals = score_all(work, nullptr);
    if (!totals) return pass(totals);
    report.rows.front() = row_of(*totals, *work.reference);
    report.scored = totals->scored;
  }
  return report;
}

}  // namespace stet::lab
