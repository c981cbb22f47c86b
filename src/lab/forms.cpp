#include "lab/forms.hpp"

#include <algorithm>

#include "lab/wrap.hpp"
#include "sample/sampler.hpp"

namespace stet::lab {
namespace {

// Layers take turns in the storage of one, as the keys and values of a loop without a cache do: nothing is left of a
// layer when the next one begins.
class OneLayerStep final : public ForwardingStep {
 public:
  using ForwardingStep::ForwardingStep;
  void write(int, HeadRange heads, Rows k, Rows v) noexcept override { inner_->write(0, heads, k, v); }
  View view(int, int slice) const noexcept override { return inner_->view(0, slice); }
};

class OneLayerCache final : public ForwardingCache {
 public:
  using ForwardingCache::ForwardingCache;
  Result<std::unique_ptr<Step>> begin(std::span<const Append> appends) override {
    auto step = inner_->begin(appends);
    if (!step) return step;
    return std::make_unique<OneLayerStep>(std::move(*step));
  }
};

bool all_alike(const CacheSpec& spec) {
  return std::all_of(spec.layers.begin(), spec.layers.end(),
                     [&](const LayerSpec& layer) { return layer == spec.layers.front(); });
}

}  // namespace

const char* name_of(Form form) noexcept {
  switch (form) {
    case Form::at_once:
      return "no cache, all scores at once";
    case Form::by_rows:
      return "no cache, rows of scores";
    case Form::growing:
      return "growing cache";
    case Form::contiguous:
      return "preallocated cache";
    case Form::paged:
      return "paged cache";
  }
  return "";
}

const char* field_of(Form form) noexcept {
  switch (form) {
    case Form::at_once:
      return "at_once";
    case Form::by_rows:
      return "by_rows";
    case Form::growing:
      return "growing";
    case Form::contiguous:
      return "contiguous";
    case Form::paged:
      return "paged";
  }
  return "";
}

namespace {

CacheOptions cache_options(const FormOptions& options) {
  CacheOptions cache;
  cache.max_len = options.max_len;
  cache.retain = Retain::all;
  if (is_cached(options.form) && options.prefill_chunk > 0) {
    cache.max_step_tokens = std::min(options.prefill_chunk, options.max_len);
  }
  if (options.form == Form::growing) cache.layout = Layout::growing;
  if (options.form == Form::paged) {
    cache.layout = Layout::paged;
    cache.page_tokens = options.page_tokens;
    cache.shuffle = options.seed;
  }
  return cache;
}

// Where one layer's storage serves all.
CacheSpec cache_spec(const model::Model& model, Form form) {
  CacheSpec spec = model.cache_spec();
  if (!is_cached(form) && all_alike(spec)) spec.layers.resize(1);
  return spec;
}

}  // namespace

std::size_t most_bytes(const model::Model& model, const FormOptions& options) {
  const auto plan = plan_cache(cache_spec(model, options.form), cache_options(options));
  const bool uncached = !is_cached(options.form);
  const Pos rows =
      uncached || options.prefill_chunk == 0 ? options.max_len : std::min(options.prefill_chunk, options.max_len);
  const std::size_t element = size_of(model.dtype());
  std::size_t scores = 0;
  if (uncached || options.hold_scores) {
    // Visible blocks of each query, and room to grow.
    const Pos held =
        options.form == Form::by_rows ? std::min<Pos>(options.score_rows, options.max_len) : options.max_len;
    const Pos seen = options.form == Form::by_rows ? options.max_len : options.max_len / 2;
    // A block's scores, what it gives, its maximum and sum.
    const auto block = static_cast<std::size_t>(kernels::kSoftmaxBlock + model.cache_spec().layers.front().v_dim + 2);
    const auto blocks = static_cast<std::size_t>(seen / kernels::kSoftmaxBlock + 2);
    scores = static_cast<std::size_t>(held) * blocks * block * static_cast<std::size_t>(model.config().heads) *
             element * 5 / 4;
  }
  const auto logits = static_cast<std::size_t>(uncached && options.all_logits ? rows : 1) *
                      static_cast<std::size_t>(model.config().vocab) * element;
  return (plan ? plan->reserved : 0) + model.workspace_bytes(static_cast<int>(rows)) + scores + logits;
}

Result<FormRun> FormRun::make(const model::Model& model, base::ThreadPool& pool, const FormOptions& options) {
  FormRun run;
  run.model_ = &model;
  run.pool_ = &pool;
  run.options_ = options;
  run.scores_.rows = options.form == Form::by_rows ? options.score_rows : 0;
  const CacheSpec spec = cache_spec(model, options.form);
  const bool one_layer = spec.layers.size() < model.cache_spec().layers.size();
  auto made = make_cache(spec, cache_options(options));
  if (!made) return pass(made);
  run.cache_ = std::move(*made);
  if (one_layer) run.cache_ = std::make_unique<OneLayerCache>(std::move(run.cache_));
  if (options.wrap) {
    auto wrapped = options.wrap(std::move(run.cache_));
    if (!wrapped) return pass(wrapped);
    run.cache_ = std::move(*wrapped);
  }
  const auto seq = run.cache_->open();
  if (!seq) return pass(seq);
  run.seq_ = *seq;
  return run;
}

Result<std::span<const std::byte>> FormRun::step(std::span<const TokenId> ids) {
  const auto row_bytes = static_cast<std::size_t>(model_->config().vocab) * size_of(model_->dtype());
  if (!is_cached(options_.form)) {
    if (auto ok = cache_->truncate(seq_, 0); !ok) return pass(ok);
  }
  const auto length = cache_->length(seq_);
  if (!length) return pass(length);
  const auto there = static_cast<std::size_t>(*length);
  const std::size_t chunk = is_cached(options_.form) && options_.prefill_chunk > 0
                                ? static_cast<std::size_t>(options_.prefill_chunk)
                                : ids.size();
  for (std::size_t at = there; at < ids.size(); at += chunk) {
    const auto some = ids.subspan(at, std::min(chunk, ids.size() - at));
    if (auto ok = append(some, at + some.size() == ids.size()); !ok) return pass(ok);
  }
  return std::span<const std::byte>(logits_.data() + (rows_.size() - 1) * row_bytes, row_bytes);
}

Result<void> FormRun::append(std::span<const TokenId> ids, bool last) {
  if (keep_going && !keep_going()) return fail(Code::interrupted, "interrupted");
  const int n = static_cast<int>(ids.size());
  if (n > workspace_rows_) {
    workspace_ = {};
    auto workspace = base::Buffer::allocate(model_->workspace_bytes(n));
    if (!workspace) return pass(workspace);
    workspace_ = std::move(*workspace);
    workspace_rows_ = n;
  }
  rows_.clear();
  if (last) {
    for (int r = options_.all_logits && !is_cached(options_.form) ? 0 : n - 1; r < n; ++r) rows_.push_back(r);
  }
  const std::size_t logits = rows_.size() * static_cast<std::size_t>(model_->config().vocab) * size_of(model_->dtype());
  if (logits > logits_.size()) {
    logits_ = {};
    auto buffer = base::Buffer::allocate(logits);
    if (!buffer) return pass(buffer);
    logits_ = std::move(*buffer);
  }
  kernels::Compute on{pool_, &kernels::targets().front(), nullptr, profile};
  if (!is_cached(options_.form) || (options_.hold_scores && n > 1)) on.scores = &scores_;
  scores_.refused = false;
  const Append what{seq_, n};
  auto step = cache_->begin({&what, 1});
  if (!step) return pass(step);
  if (auto ok = model_->forward(on, **step, ids, {rows_, logits_.data()}, workspace_); !ok) return ok;
  if (scores_.refused) return fail(Code::capacity, "the system refused the memory for the rows of scores");
  (*step)->commit();
  return {};
}

Result<void> FormRun::cut(Pos len) {
  return cache_->truncate(seq_, len);
}

std::size_t FormRun::cache_bytes() const noexcept {
  return is_cached(options_.form) ? cache_->usage().reserved : 0;
}

std::size_t FormRun::activation_bytes() const noexcept {
  return workspace_.size() + scores_.used + logits_.size() + (is_cached(options_.form) ? 0 : cache_->usage().reserved);
}

TokenId top_token(const model::Model& model, std::span<const std::byte> logits) {
  const auto as = [&]<class T>(T) {
    return sample::most_likely(std::span(reinterpret_cast<const T*>(logits.data()), logits.size() / sizeof(T)));
  };
  return model.dtype() == DType::f64 ? as(0.0) : as(0.0F);
}

}  // namespace stet::lab
