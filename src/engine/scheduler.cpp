#include "engine/scheduler.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/audit.hpp"
#include "kv/prefix_index.hpp"
#include "sample/sampler.hpp"

namespace stet::engine {
namespace {

double seconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

}  // namespace

int step_rows(const Policy& policy) noexcept {
  return std::max(policy.chunk, policy.max_seqs);
}

Result<Seq> open_sequence(const Bench& bench) {
  while (true) {
    auto seq = bench.cache->open();
    if (seq || seq.error().code != Code::capacity || bench.prefix == nullptr) return seq;
    auto evicted = bench.prefix->evict_one();
    if (!evicted) return pass(evicted);
    if (!*evicted) return seq;
  }
}

Result<void> append(const Bench& bench, Cache& cache, Seq seq, std::span<const TokenId> ids, model::LogitsOut out) {
  const Append append{seq, static_cast<int>(ids.size())};
  auto step = cache.begin({&append, 1});
  if (!step) return pass(step);
  if (auto ok = bench.model->forward(bench.on, **step, ids, out, *bench.workspace); !ok) return ok;
  (*step)->commit();
  return {};
}

Scheduler::Active::Active(std::size_t i, Seq s, const Request& request, const Tokenizer* tokenizer)
    : index(i), seq(s), tokens(request.prompt), matcher(request.stop), started(Clock::now()) {
  if (tokenizer != nullptr) decoder.emplace(*tokenizer);
}

Scheduler::Scheduler(const Bench& bench, const Policy& policy, std::span<const Request> requests,
                     const std::function<bool(const TokenEvent&)>& on_token)
    : bench_(bench), policy_(policy), requests_(requests), on_token_(on_token), completions_(requests.size()) {
  waiting_.resize(requests.size());
  std::iota(waiting_.begin(), waiting_.end(), std::size_t{0});
}

Scheduler::~Scheduler() {
  for (const Active& active : active_) {
    if (!active.finished) (void)bench_.cache->close(active.seq);
  }
}

Result<void> Scheduler::admit() {
  while (!waiting_.empty() && active_.size() < static_cast<std::size_t>(policy_.max_seqs)) {
    const std::size_t index = waiting_.front();
    waiting_.pop_front();
    if (auto ok = start(index); !ok) return ok;
  }
  return {};
}

// Begins with as much of the prompt as a kept sequence has.
Result<void> Scheduler::start(std::size_t index) {
  const Request& request = requests_[index];
  Completion& completion = completions_[index];
  std::optional<Seq> found;
  const Pos length = static_cast<Pos>(request.prompt.size()), limit = bench_.cache->options().max_len;
  const Pos base = std::max<Pos>(0, length - limit);
  if (bench_.prefix != nullptr) {
    auto hit = bench_.prefix->lookup(std::span(request.prompt).subspan(static_cast<std::size_t>(base)), request.salt);
    if (!hit) return pass(hit);
    found = hit->seq;
    completion.cached_tokens = hit->tokens;
    if (hit->why != kv::Miss::none) completion.miss = kv::name_of(hit->why);
  }
  if (!found) {
    auto seq = open_sequence(bench_);
    if (!seq) return pass(seq);
    found = *seq;
  }
  Active& active = active_.emplace_back(index, *found, request, bench_.tokenizer);
  active.base = base;
  active.cached = completion.cached_tokens;
  if (active.cached == 0 || bench_.auditor == nullptr) return {};
  return bench_.auditor->check(bench_, policy_.chunk, *found,
                               active.window().first(static_cast<std::size_t>(active.cached)));
}

// Sequences with one token to go are served first, so that a long prompt delays nobody by more than its chunk.
std::vector<Append> Scheduler::plan_step() const {
  std::vector<Append> appends;
  int room = step_rows(policy_);
  for (const bool short_ones : {true, false}) {
    for (const Active& active : active_) {
      const Pos pending = active.pending();
      if ((pending == 1) != short_ones || room == 0 || active.resting || active.finished) continue;
      const int n = static_cast<int>(std::min<Pos>({pending, room, policy_.chunk}));
      appends.push_back({active.seq, n});
      room -= n;
    }
  }
  return appends;
}

Scheduler::Active& Scheduler::active_of(Seq seq) {
  return *std::find_if(active_.begin(), active_.end(), [&](const Active& a) { return a.seq == seq; });
}

// The longest beginning of the planned step that the cache has room for; null when no sequence is left to run.
Result<std::unique_ptr<Step>> Scheduler::begin_what_fits() {
  while (true) {
    auto appends = plan_step();
    if (appends.empty()) return nullptr;
    const Seq first = appends.front().seq;
    Code why = Code::exhausted;
    while (!appends.empty() && why == Code::exhausted) {
      auto step = bench_.cache->begin(appends);
      if (step) return step;
      why = step.error().code;
      if (why != Code::exhausted && why != Code::capacity) return step;
      if (why == Code::exhausted && bench_.prefix != nullptr) {
        auto evicted = bench_.prefix->evict_one();
        if (!evicted) return pass(evicted);
        if (*evicted) continue;
      }
      if (why == Code::exhausted) appends.pop_back();
    }
    if (why == Code::capacity) {
      if (auto ok = drop_what_never_fits(appends); !ok) return pass(ok);
      continue;
    }
    auto made = make_room(first);
    if (!made) return pass(made);
    if (!*made) return fail(Code::exhausted, "the cache has no room for one sequence alone");
  }
}

// Ends the sequences that are too long for the whole pool.
Result<void> Scheduler::drop_what_never_fits(std::span<const Append> appends) {
  bool dropped = false;
  for (const Append& append : appends) {
    auto alone = bench_.cache->begin({&append, 1});
    if (alone || alone.error().code != Code::capacity) continue;
    Active& active = active_of(append.seq);
    completions_[active.index].error = alone.error().message;
    finish(active, StopReason::no_room);
    dropped = true;
  }
  if (!dropped) return fail(Code::capacity, "the cache refuses a step whose sequences it takes one by one");
  std::erase_if(active_, [](const Active& a) { return a.finished; });
  return admit();
}

// Gives up the rows of the youngest other sequence. What it has made stays, and is read anew once another one ended.
Result<bool> Scheduler::make_room(Seq for_whom) {
  for (auto it = active_.rbegin(); it != active_.rend(); ++it) {
    Active& active = *it;
    if (active.seq == for_whom || active.cached == 0) continue;
    if (auto ok = restart(active); !ok) return pass(ok);
    active.resting = true;
    ++completions_[active.index].preempted;
    return true;
  }
  return false;
}

// An empty sequence in place of its own.
Result<void> Scheduler::restart(Active& active) {
  (void)bench_.cache->close(active.seq);
  auto seq = bench_.cache->open();
  if (!seq) return pass(seq);
  active.seq = *seq;
  active.cached = 0;
  return {};
}

Result<void> Scheduler::step() {
  if (auto ok = admit(); !ok) return ok;
  auto begun = begin_what_fits();
  if (!begun) return pass(begun);
  if (*begun == nullptr) return {};
  const auto slices = (*begun)->slices();

  std::vector<TokenId> ids;
  std::vector<int> rows;             // whose logits are wanted
  std::vector<Active*> rows_active;  // and by whom
  for (const Slice& slice : slices) {
    Active& active = active_of(slice.seq);
    const auto first = active.window().begin() + slice.first;
    ids.insert(ids.end(), first, first + slice.tokens);
    active.cached += slice.tokens;
    if (active.pending() == 0) {
      rows.push_back(slice.row + slice.tokens - 1);
      rows_active.push_back(&active);
    }
  }
  const auto row_bytes = static_cast<std::size_t>(bench_.model->config().vocab) * size_of(bench_.model->dtype());
  logits_.resize(std::max(logits_.size(), rows.size() * row_bytes));
  if (auto ok = bench_.model->forward(bench_.on, **begun, ids, {rows, logits_.data()}, *bench_.workspace); !ok)
    return ok;
  (*begun)->commit();
  begun->reset();

  if (const CacheUsage usage = bench_.cache->usage(); usage.tokens >= peak_.tokens) {
    peak_ = usage;
    if (policy_.map) peak_pages_ = bench_.cache->pages();
  }
  for (std::size_t i = 0; i < rows.size() && !interrupted_; ++i) {
    if (auto ok = accept(*rows_active[i], std::span(logits_).subspan(i * row_bytes, row_bytes)); !ok) return ok;
  }
  std::erase_if(active_, [](const Active& a) { return a.finished; });
  return {};
}

Result<void> Scheduler::accept(Active& active, std::span<const std::byte> logits) {
  const Request& request = requests_[active.index];
  Completion& completion = completions_[active.index];
  const auto now = Clock::now();
  if (!active.decoding(request)) {
    completion.prefill_seconds = seconds(now - active.started);
    active.first_token = now;
    if (request.max_new == 0) {
      finish(active, StopReason::length);
      return {};
    }
  }
  const auto position = static_cast<Pos>(active.tokens.size());
  const auto vocab = static_cast<std::size_t>(bench_.model->config().vocab);
  auto id = bench_.model->dtype() == DType::f64
                ? sample::sample(std::span(reinterpret_cast<const double*>(logits.data()), vocab), active.tokens,
                                 request.sampling, request.sequence, position)
                : sample::sample(std::span(reinterpret_cast<const float*>(logits.data()), vocab), active.tokens,
                                 request.sampling, request.sequence, position);
  if (!id) return pass(id);

  active.tokens.push_back(*id);
  completion.ids.push_back(*id);
  if (active.base > 0) ++completion.past_limit;
  completion.decode_seconds = seconds(Clock::now() - active.first_token);
  const bool ended = !request.ignore_eos && bench_.model->config().eos == *id;
  std::optional<StopReason> reason;
  std::string piece;
  if (ended) {
    reason = StopReason::eos;
  } else {
    if (active.decoder) {
      auto out = active.matcher.push(active.decoder->push(*id));
      piece = std::move(out.text);
      if (out.stopped) reason = StopReason::stop_string;
    }
    if (!reason && completion.ids.size() == static_cast<std::size_t>(request.max_new)) reason = StopReason::length;
    const bool full = position + 1 == bench_.cache->options().max_len;
    if (!reason && full && request.past_limit == PastLimit::stop) reason = StopReason::context;
  }
  emit(active, *id, piece);
  if (interrupted_) return {};
  if (!reason) return go_on(active);
  finish(active, *reason);
  return {};
}

// Past the limit the next token is that of the last tokens alone, as if the text began with them: none of the stored
// rows is of use, since each was computed at another position and after more.
Result<void> Scheduler::go_on(Active& active) {
  const Pos base = std::max<Pos>(0, static_cast<Pos>(active.tokens.size()) - bench_.cache->options().max_len);
  if (base == active.base) return policy_.recompute ? restart(active) : Result<void>{};
  active.base = base;
  return restart(active);
}

void Scheduler::emit(Active& active, std::optional<TokenId> id, const std::string& piece) {
  completions_[active.index].text += piece;
  if (on_token_ && !on_token_({active.index, id, piece}) && !interrupted_) interrupt();
}

void Scheduler::finish(Active& active, StopReason reason) {
  Completion& completion = completions_[active.index];
  completion.reason = reason;
  // The last token was never read, so its row is not there.
  const auto stored = active.window().first(static_cast<std::size_t>(active.cached));
  const bool kept = bench_.prefix != nullptr && !stored.empty() &&
                    bench_.prefix->insert(active.seq, stored, requests_[active.index].salt);
  if (!kept) (void)bench_.cache->close(active.seq);
  active.finished = true;
  for (Active& other : active_) other.resting = false;
  std::string rest;
  // After a stop string nothing may follow; otherwise what was held back is text after all.
  if (active.decoder && reason != StopReason::stop_string) {
    auto out = active.matcher.push(active.decoder->finish());
    rest = std::move(out.text);
    if (out.stopped) {
      completion.reason = StopReason::stop_string;
    } else {
      rest += active.matcher.finish();
    }
  }
  emit(active, std::nullopt, rest);
}

void Scheduler::interrupt() {
  interrupted_ = true;
  for (Active& active : active_) {
    if (!active.finished) finish(active, StopReason::interrupted);
  }
  for (const std::size_t index : waiting_) completions_[index].reason = StopReason::interrupted;
  waiting_.clear();
  active_.clear();
}

}  // namespace stet::engine
