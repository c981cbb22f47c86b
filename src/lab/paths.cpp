#include "lab/paths.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "engine/scheduler.hpp"
#include "sample/sampler.hpp"

namespace stet::lab {
namespace {

Ids slice(const Ids& ids, Pos begin, Pos end) {
  return {ids.begin() + begin, ids.begin() + end};
}

Action append(Ids ids, bool keep = true) {
  Action action;
  action.append.push_back({0, std::move(ids), keep, {}});
  return action;
}

Action cut(Pos len) {
  Action action;
  action.truncate = Action::Cut{0, len};
  return action;
}

}  // namespace

Ids random_ids(const ModelConfig& config, Pos n, std::uint64_t seed, std::uint64_t stream) {
  Ids ids(static_cast<std::size_t>(n));
  for (Pos i = 0; i < n; ++i) {
    ids[static_cast<std::size_t>(i)] = static_cast<TokenId>(sample::uniform(seed, stream, i) * config.vocab);
  }
  return ids;
}

Schedule in_chunks(const Ids& ids, Pos chunk) {
  const auto n = static_cast<Pos>(ids.size());
  Schedule s{{n}, {}};
  for (Pos at = 0; at < n; at += chunk) s.actions.push_back(append(slice(ids, at, std::min(n, at + chunk))));
  return s;
}

Schedule from_scratch(const Ids& ids) {
  const auto n = static_cast<Pos>(ids.size());
  Schedule s{{n}, {}};
  for (Pos end = 1; end <= n; ++end) {
    if (end > 1) s.actions.push_back(cut(0));
    s.actions.push_back(append(slice(ids, 0, end)));
    s.actions.back().last_row_only = true;
  }
  return s;
}

Schedule with_detours(const Ids& ids, const Ids& others) {
  const auto n = static_cast<Pos>(ids.size());
  Schedule s{{n}, {}};
  Pos at = 0;
  for (Pos turn = 0; at < n; ++turn) {
    const Pos step = std::min<Pos>(n - at, 1 + turn % 5);
    s.actions.push_back(append(slice(ids, at, at + step)));
    at += step;
    // A wrong turn of up to 20 tokens, then back to before it, and now and then further back than that.
    const Pos wrong = std::min<Pos>(n - at, 1 + (turn * 7) % 20);
    if (wrong > 0) s.actions.push_back(append(slice(others, at, at + wrong), false));
    if (turn % 3 == 1) at -= std::min<Pos>(at, 2);
    if (wrong > 0 || turn % 3 == 1) s.actions.push_back(cut(at));
  }
  return s;
}

Schedule ragged(const std::vector<Ids>& sequences, Pos chunk) {
  Schedule s;
  std::vector<Pos> at(sequences.size(), 0);
  for (const Ids& ids : sequences) s.lengths.push_back(static_cast<Pos>(ids.size()));
  // Sequence i joins at step i, reads half of itself in chunks and the rest token by token.
  for (std::size_t t = 0;; ++t) {
    Action action;
    bool more = false;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const Pos n = s.lengths[i];
      more = more || at[i] < n;
      if (i > t || at[i] == n) continue;
      const Pos step = at[i] < n / 2 ? std::min(chunk, n / 2 - at[i]) : 1;
      action.append.push_back({i, slice(sequences[i], at[i], at[i] + step), true, {}});
      at[i] += step;
    }
    if (!more) return s;
    if (!action.append.empty()) s.actions.push_back(std::move(action));
  }
}

namespace {

// A cache for a path: the real one, then the fault if any, then the observer that the record comes from.
struct Watched {
  std::unique_ptr<Cache> cache;
  ObservedCache* observed = nullptr;
};

Result<Watched> make_watched(const model::Model& model, Pos max_len, int max_seqs, const Conditions& conditions,
                             Pos max_step) {
  CacheOptions options;
  options.layout = conditions.cache.layout;
  options.retain = conditions.cache.retain;
  if (options.layout == Layout::paged) {
    options.page_tokens = conditions.cache.page_tokens;
    options.pool_tokens = conditions.cache.pool_tokens;
    options.shuffle = conditions.cache.shuffle;
  }
  options.max_step_tokens = max_step;
  // What is put in between may need a row that nobody asked for.
  options.max_len = max_len + (conditions.wrap ? 1 : 0);
  options.max_seqs = max_seqs;
  options.poison = conditions.poison;
  auto made = make_cache(conditions.cache.spec(model), options);
  if (!made) return pass(made);
  std::unique_ptr<Cache> cache = std::move(*made);
  if (conditions.wrap) {
    auto wrapped = conditions.wrap(std::move(cache));
    if (!wrapped) return pass(wrapped);
    cache = std::move(*wrapped);
  }
  auto observed = std::make_unique<ObservedCache>(std::move(cache));
  Watched watched;
  watched.observed = observed.get();
  watched.cache = std::move(observed);
  return watched;
}

std::string record(const ObservedCache& cache, const Conditions& conditions, DType weights) {
  return fmt::format("{}, {} kernels, {} thread{}", cache.record(), conditions.target->name_with(weights),
                     conditions.threads, conditions.threads == 1 ? "" : "s");
}

class Runner {
 public:
  Runner(const model::Model& model, const Schedule& schedule, const Conditions& conditions)
      : model_(model),
        schedule_(schedule),
        pool_(conditions.threads),
        target_(conditions.target),
        row_bytes_(static_cast<std::size_t>(model.config().vocab) * size_of(model.dtype())) {
    Pos total = 0;
    for (const Pos n : schedule.lengths) {
      first_row_.push_back(total);
      total += n;
    }
    elements_.resize(static_cast<std::size_t>(total) * row_bytes_);
  }

  Result<void> run(Cache& cache, const KeepGoing& go) {
    for (std::size_t i = 0; i < schedule_.lengths.size(); ++i) {
      auto seq = cache.open();
      if (!seq) return pass(seq);
      seqs_.push_back(*seq);
    }
    std::size_t most = 0;
    for (const Action& action : schedule_.actions) {
      std::size_t rows = 0;
      for (const auto& part : action.append) rows += part.ids.size();
      most = std::max(most, rows);
    }
    auto workspace = base::Buffer::allocate(model_.workspace_bytes(static_cast<int>(most)));
    if (!workspace) return pass(workspace);
    workspace_ = std::move(*workspace);
    for (const Action& action : schedule_.actions) {
      if (go && !go()) return fail(Code::interrupted, "interrupted");
      auto done = action.truncate ? cache.truncate(seqs_[action.truncate->sequence], action.truncate->len)
                                  : step(cache, action);
      if (!done) return done;
    }
    return {};
  }

  std::vector<std::byte> take() { return std::move(elements_); }

 private:
  Result<void> step(Cache& cache, const Action& action) {
    std::vector<Append> appends;
    std::vector<Pos> firsts;  // asked of the cache: the step may have been tampered with
    Ids ids;
    for (const auto& part : action.append) {
      auto length = cache.length(seqs_[part.sequence]);
      if (!length) return pass(length);
      firsts.push_back(*length);
      appends.push_back({seqs_[part.sequence], static_cast<int>(part.ids.size())});
      ids.insert(ids.end(), part.ids.begin(), part.ids.end());
    }
    auto step = cache.begin(appends);
    if (!step) return pass(step);
    std::vector<int> rows;
    std::vector<std::size_t> to;  // the row of the result that each belongs to
    const auto slices = (*step)->slices();
    for (std::size_t i = 0; i < slices.size(); ++i) {
      const Action::Part& part = action.append[i];
      if (!part.keep) continue;
      for (int t = action.last_row_only ? slices[i].tokens - 1 : 0; t < slices[i].tokens; ++t) {
        const Pos position = part.to.empty() ? firsts[i] + t : part.to[static_cast<std::size_t>(t)];
        if (position < 0) continue;
        rows.push_back(slices[i].row + t);
        to.push_back(static_cast<std::size_t>(first_row_[part.sequence] + position));
      }
    }
    logits_.resize(std::max(logits_.size(), rows.size() * row_bytes_));
    if (auto ok = model_.forward({&pool_, target_}, **step, ids, {rows, logits_.data()}, workspace_); !ok) return ok;
    (*step)->commit();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::memcpy(elements_.data() + to[i] * row_bytes_, logits_.data() + i * row_bytes_, row_bytes_);
    }
    return {};
  }

  const model::Model& model_;
  const Schedule& schedule_;
  base::ThreadPool pool_;
  const kernels::Target* target_;
  std::size_t row_bytes_;
  std::vector<Pos> first_row_;
  std::vector<Seq> seqs_;
  std::vector<std::byte> elements_, logits_;
  base::Buffer workspace_;
};

}  // namespace

CacheSpec CacheChoice::spec(const model::Model& model) const {
  CacheSpec spec = model.cache_spec();
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    if (codecs) {
      spec.layers[i].k = codecs->first;
      spec.layers[i].v = codecs->second;
    }
    if (!spans.empty()) spec.layers[i].span = spans[i % spans.size()];
  }
  return spec;
}

Result<Drive> Drive::make(const model::Model& model, const Conditions& conditions, Size size) {
  auto watched = make_watched(model, size.max_len, size.seqs, conditions, std::min(size.max_len, size.max_step));
  if (!watched) return pass(watched);
  Drive drive;
  drive.model_ = &model;
  drive.conditions_ = conditions;
  drive.cache_ = std::move(watched->cache);
  drive.observed_ = watched->observed;
  drive.pool_ = std::make_unique<base::ThreadPool>(conditions.threads);
  return drive;
}

Result<void> Drive::append(std::span<const Append> appends, std::span<const TokenId> ids, std::span<const int> rows,
                           std::vector<std::byte>* out) {
  if (keep_going && !keep_going()) return fail(Code::interrupted, "interrupted");
  const auto n = static_cast<int>(ids.size());
  if (n > workspace_rows_) {
    auto workspace = base::Buffer::allocate(model_->workspace_bytes(n));
    if (!workspace) return pass(workspace);
    workspace_ = std::move(*workspace);
    workspace_rows_ = n;
  }
  auto step = cache_->begin(appends);
  if (!step) return pass(step);
  std::byte* data = nullptr;
  if (!rows.empty()) {
    const std::size_t bytes = rows.size() * static_cast<std::size_t>(model_->config().vocab) * size_of(model_->dtype());
    out->resize(out->size() + bytes);
    data = out->data() + out->size() - bytes;
  }
  if (auto ok = model_->forward({pool_.get(), conditions_.target}, **step, ids, {rows, data}, workspace_); !ok) {
    return ok;
  }
  (*step)->commit();
  return {};
}

Result<void> Drive::feed(Seq seq, const Ids& ids, Pos to, Pos chunk, std::vector<std::byte>* out) {
  auto at = cache_->length(seq);
  if (!at) return pass(at);
  for (Pos first = *at; first < to;) {
    const int n = static_cast<int>(std::min(chunk, to - first));
    std::vector<int> rows(out != nullptr ? static_cast<std::size_t>(n) : 0);
    std::iota(rows.begin(), rows.end(), 0);
    const Append one{seq, n};
    auto done = append({&one, 1}, std::span(ids).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n)),
                       rows, out);
    if (!done && done.error().code == Code::exhausted && make_room && make_room()) continue;
    if (!done) return done;
    first += n;
  }
  return {};
}

std::string Drive::record() const {
  return stet::lab::record(*observed_, conditions_, model_->weights());
}

Result<Outcome> run(const model::Model& model, const Schedule& schedule, const Conditions& conditions,
                    const KeepGoing& go) {
  const Pos longest = *std::max_element(schedule.lengths.begin(), schedule.lengths.end());
  Pos longest_step = 1;
  for (const Action& action : schedule.actions) {
    for (const auto& part : action.append) longest_step = std::max(longest_step, static_cast<Pos>(part.ids.size()));
  }
  auto watched = make_watched(model, longest, static_cast<int>(schedule.lengths.size()), conditions,
                              std::min(longest, longest_step));
  if (!watched) return pass(watched);
  Runner runner(model, schedule, conditions);
  if (auto ok = runner.run(*watched->cache, go); !ok) return pass(ok);
  return Outcome{runner.take(), size_of(model.dtype()), record(*watched->observed, conditions, model.weights())};
}

Result<Outcome> generate(const engine::Loaded& loaded, const Ids& prompt, int n, const SamplingParams& sampling,
                         bool recompute, const Conditions& conditions, const KeepGoing& go) {
  const model::Model& model = *loaded.model;
  const auto max_len = static_cast<Pos>(prompt.size()) + n;
  auto watched = make_watched(model, max_len, 1, conditions, max_len);
  if (!watched) return pass(watched);
  engine::Policy policy;
  policy.chunk = static_cast<int>(max_len);
  policy.recompute = recompute;
  auto workspace = base::Buffer::allocate(model.workspace_bytes(engine::step_rows(policy)));
  if (!workspace) return pass(workspace);
  base::ThreadPool pool(conditions.threads);
  Request request;
  request.prompt = prompt;
  request.max_new = n;
  request.sampling = sampling;
  request.ignore_eos = true;
  engine::Bench bench;
  bench.model = &model;
  bench.cache = watched->cache.get();
  bench.on = {&pool, conditions.target};
  bench.workspace = &*workspace;
  engine::Scheduler scheduler(bench, policy, {&request, 1}, {});
  while (!scheduler.done()) {
    if (go && !go()) return fail(Code::interrupted, "interrupted");
    if (auto ok = scheduler.step(); !ok) return pass(ok);
  }
  const auto ids = scheduler.take()[0].ids;
  Outcome outcome{{}, sizeof(TokenId), record(*watched->observed, conditions, model.weights())};
  outcome.elements.resize(ids.size() * sizeof(TokenId));
  std::memcpy(outcome.elements.data(), ids.data(), outcome.elements.size());
  return outcome;
}

}  // namespace stet::lab
