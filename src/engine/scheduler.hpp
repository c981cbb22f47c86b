// The step loop: which sequences take part in the next step, with how many tokens, and what becomes of their logits.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/buffer.hpp"
#include "model/model.hpp"
#include "sample/stop.hpp"
#include "stet/engine.hpp"

namespace stet::kv {
class PrefixIndex;
}

namespace stet::engine {

class Auditor;

/// How steps are made. A step has at most step_rows(policy) rows: every sequence that decodes gets one, prompts share
/// the rest.
struct Policy {
  int chunk = 256;
  int max_seqs = 1;
  bool map = false;        // note the pages in use at the peak
  bool recompute = false;  // forget the whole cache after every token: the loop without a cache
};

int step_rows(const Policy& policy) noexcept;

/// Everything a step works in.
struct Bench {
  const model::Model* model = nullptr;
  const Tokenizer* tokenizer = nullptr;  // null: no text
  Cache* cache = nullptr;
  kv::PrefixIndex* prefix = nullptr;  // null: nothing is kept for later requests
  Auditor* auditor = nullptr;         // null: no hit is audited
  kernels::Compute on;
  base::Buffer* workspace = nullptr;  // model->workspace_bytes(step_rows(policy)) at least
};

/// An empty sequence, for which kept ones are evicted if need be. Code::capacity when all are in use.
Result<Seq> open_sequence(const Bench& bench);

/// A step of one sequence alone: appends `ids` and commits them. `cache` need not be the bench's own. After an error
/// nothing was appended: those of Cache::begin, which Code::exhausted and Code::capacity always are, or of the forward.
Result<void> append(const Bench& bench, Cache& cache, Seq seq, std::span<const TokenId> ids, model::LogitsOut out);

class Scheduler {
 public:
  Scheduler(const Bench& bench, const Policy& policy, std::span<const Request> requests,
            const std::function<bool(const TokenEvent&)>& on_token);
  ~Scheduler();  // closes what is still open

  bool done() const noexcept { return waiting_.empty() && active_.empty(); }

  /// One step of the model. After an error the scheduler is only fit to be destroyed.
  Result<void> step();

  /// Ends every unfinished request with `interrupted`; the texts so far are kept.
  void interrupt();
  bool interrupted() const noexcept { return interrupted_; }

  std::vector<Completion> take() { return std::move(completions_); }

  /// The largest usage seen after a step.
  const CacheUsage& peak() const noexcept { return peak_; }
  const std::vector<PageInfo>& peak_pages() const noexcept { return peak_pages_; }

 private:
  using Clock = std::chrono::steady_clock;

  struct Active {
    std::size_t index = 0;
    Seq seq;
    bool finished = false;                 // and its sequence closed
    bool resting = false;                  // preempted: waits until another sequence ends
    std::vector<TokenId> tokens;           // the prompt and what followed
    Pos base = 0;                          // the first of them that the sequence is of: before the limit 0
    Pos cached = 0;                        // of those from base on, how many the cache holds
    std::optional<StreamDecoder> decoder;  // empty without a tokenizer
    sample::StopMatcher matcher;
    Clock::time_point started, first_token;

    Active(std::size_t i, Seq s, const Request& request, const Tokenizer* tokenizer);
    bool decoding(const Request& request) const { return tokens.size() > request.prompt.size(); }
    std::span<const TokenId> window() const { return std::span(tokens).subspan(static_cast<std::size_t>(base)); }
    Pos pending() const { return static_cast<Pos>(tokens.size()) - base - cached; }
  };

  Result<void> admit();
  Result<void> start(std::size_t index);
  std::vector<Append> plan_step() const;
  Result<std::unique_ptr<Step>> begin_what_fits();
  Result<void> drop_what_never_fits(std::span<const Append> appends);
  Result<bool> make_room(Seq for_whom);
  Result<void> restart(Active& active);
  Result<void> go_on(Active& active);
  Active& active_of(Seq seq);
  Result<void> accept(Active& active, std::span<const std::byte> logits);
  void emit(Active& active, std::optional<TokenId> id, const std::string& piece);
  void finish(Active& active, StopReason reason);

  Bench bench_;
  Policy policy_;
  std::span<const Request> requests_;
  std::function<bool(const TokenEvent&)> on_token_;
  std::deque<std::size_t> waiting_;
  std::deque<Active> active_;  // in order of admission
  std::vector<Completion> completions_;
  std::vector<std::byte> logits_;
  CacheUsage peak_;
  std::vector<PageInfo> peak_pages_;
  bool interrupted_ = false;
};

}  // namespace stet::engine
