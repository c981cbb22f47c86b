// The ways to write the loop that generates text, as the write-ups raced them: without a cache, with one that grows by
// copying, with one that is there from the start, and with one in pages. All give the same bits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/buffer.hpp"
#include "base/thread_pool.hpp"
#include "lab/paths.hpp"
#include "model/model.hpp"
#include "stet/cache.hpp"

namespace stet::lab {

/// The uncached ones run the whole sequence for each new token. They differ only in how many rows of attention scores
/// they hold: those of all queries, as softmax(QK) written down at once does, or of so many at a time.
enum class Form : std::uint8_t { at_once, by_rows, growing, contiguous, paged };
const char* name_of(Form form) noexcept;   // "no cache, all scores at once"
const char* field_of(Form form) noexcept;  // "at_once"
constexpr bool is_cached(Form form) noexcept {
  return form >= Form::growing;
}

/// Queries whose scores Form::by_rows holds, as published.
inline constexpr int kScoreRows = 128;

struct FormOptions {
  Form form = Form::contiguous;
  Pos max_len = 0;              // tokens that the sequence can come to
  Pos prefill_chunk = 0;        // cached: most tokens in one step; 0: all
  bool hold_scores = false;     // cached: prefill holds all scores at once too
  int score_rows = kScoreRows;  // by_rows: queries at a time
  bool all_logits = false;      // uncached: logits of every row, as the first write-up computes them, not of the last
  Pos page_tokens = 16;         // paged
  std::uint64_t seed = 0;       // paged: the order of the pages
  Wrap wrap;                    // between the cache and the run: for tests, which plant faults
};

/// One sequence in one form. The model and the pool must outlive it.
class FormRun {
 public:
  static Result<FormRun> make(const model::Model& model, base::ThreadPool& pool, const FormOptions& options);

  /// The logits behind the last of `ids`, which are the whole sequence so far: at least one more than the last time, or
  /// after cut() or restart() than are left. What is there of them is not computed again where the form has a cache.
  /// They are valid until the next call. Code::capacity when the memory for scores is refused; after an error the
  /// sequence has what the steps before the failed one left, and one may go on.
  Result<std::span<const std::byte>> step(std::span<const TokenId> ids);

  /// Forgets all from `len` on.
  Result<void> cut(Pos len);

  kernels::Profile* profile = nullptr;  // null: not wanted
  KeepGoing keep_going;                 // asked before each step of the model

  /// Bytes of the cache as its allocator counted them. Uncached forms have none: the keys and values of the layer that
  /// they are at count as activations.
  std::size_t cache_bytes() const noexcept;
  /// Bytes of the rest: the workspace of the largest step so far, logits, and of the memory for scores, which has room
  /// to grow, what was used.
  std::size_t activation_bytes() const noexcept;
  /// These, with the room that the scores have to grow.
  std::size_t allocated_bytes() const noexcept { return activation_bytes() - scores_.used + scores_.memory.size(); }
  std::size_t score_bytes() const noexcept { return scores_.used; }
  /// Of cached forms: what is reserved, in use, copied.
  CacheUsage usage() const noexcept { return cache_->usage(); }

 private:
  Result<void> append(std::span<const TokenId> ids, bool last);

  const model::Model* model_ = nullptr;
  base::ThreadPool* pool_ = nullptr;
  FormOptions options_;
  std::unique_ptr<Cache> cache_;
  Seq seq_;
  kernels::ScoreRows scores_;
  base::Buffer workspace_, logits_;
  std::vector<int> rows_;
  int workspace_rows_ = 0;
};

/// Bytes that a form takes at most, the room for scores to grow included: asked before the work, so that it does not
/// end in the middle.
std::size_t most_bytes(const model::Model& model, const FormOptions& options);

/// The most likely token by a row of logits; the lowest of several.
TokenId top_token(const model::Model& model, std::span<const std::byte> logits);

/// The stream of the seed that these experiments draw their ids from.
inline constexpr std::uint64_t kFormsStream = 4;

}  // namespace stet::lab
