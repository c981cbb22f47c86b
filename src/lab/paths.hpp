// Ways to the same logits. A schedule says how sequences go through a cache; running it gives the logits of every
// position and a record of what really happened.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/buffer.hpp"
#include "base/thread_pool.hpp"
#include "engine/loaded.hpp"
#include "lab/wrap.hpp"
#include "model/model.hpp"

namespace stet::lab {

/// One thing done to the cache: rows appended to sequences in one step, or one sequence truncated.
struct Action {
  struct Part {
    std::size_t sequence = 0;
    std::vector<TokenId> ids;
    bool keep = true;     // whether the logits of these rows belong to the result
    std::vector<Pos> to;  // of each row, the position that its logits are taken for, -1: none; empty: its own
  };
  std::vector<Part> append;
  struct Cut {
    std::size_t sequence = 0;
    Pos len = 0;
  };
  std::optional<Cut> truncate;
  bool last_row_only = false;  // logits of the last row of each part only
};

struct Schedule {
  std::vector<Pos> lengths;  // of the sequences at their longest
  std::vector<Action> actions;
};

using Ids = std::vector<TokenId>;

/// Ids drawn evenly from the vocabulary; other streams of a seed are other ids.
Ids random_ids(const ModelConfig& config, Pos n, std::uint64_t seed, std::uint64_t stream);

Schedule in_chunks(const Ids& ids, Pos chunk);             // chunk >= ids.size(): at once
Schedule from_scratch(const Ids& ids);                     // for each position the whole prefix anew
Schedule with_detours(const Ids& ids, const Ids& others);  // wrong turns, truncated and overwritten
Schedule ragged(const std::vector<Ids>& sequences,
                Pos chunk);  // together: prompts in chunks, then one token a step each
using Batching = std::function<Schedule(const std::vector<Ids>&, Pos chunk)>;

/// The cache of a path: by default the plain one, with every row kept and windows as masks only, which the others are
/// held to.
struct CacheChoice {
  Layout layout = Layout::contiguous;
  Retain retain = Retain::all;
  Pos page_tokens = 16;
  Pos pool_tokens = 0;
  std::optional<std::uint64_t> shuffle;
  std::optional<std::pair<Codec, Codec>> codecs;  // of K and V; none: the arithmetic's own
  std::vector<Span> spans;                        // of the layers in turn; empty: the model's

  CacheSpec spec(const model::Model& model) const;
};

/// How a path is run.
struct Conditions {
  CacheChoice cache;
  int threads = 1;
  const kernels::Target* target = &kernels::targets().front();
  std::optional<double> poison = std::numeric_limits<double>::quiet_NaN();
  Wrap wrap;  // what is done to the cache
};

/// What came out: raw elements of the model's dtype, sequence after sequence, position after position; or ids.
struct Outcome {
  std::vector<std::byte> elements;
  std::size_t element_bytes = 4;
  std::string record;
};

/// Stop is asked between steps; Code::interrupted.
using KeepGoing = std::function<bool()>;

/// A cache driven by hand.
class Drive {
 public:
  /// For sequences of up to `max_len` tokens, `seqs` at a time, in chunks of up to `max_step`. The model must outlive
  /// it.
  struct Size {
    Pos max_len = 0, max_step = 0;
    int seqs = 1;
  };
  static Result<Drive> make(const model::Model& model, const Conditions& conditions, Size size);

  Cache& cache() noexcept { return *cache_; }

  /// Appends ids [length of seq, to) in chunks; their logits go to the end of `out`, unless it is null. `make_room` is
  /// called when the cache is exhausted, and answers whether to try again.
  Result<void> feed(Seq seq, const Ids& ids, Pos to, Pos chunk, std::vector<std::byte>* out);
  std::function<bool()> make_room;
  KeepGoing keep_going;

  /// One step: `ids` of all appends in turn. The logits of `rows` go to the end of `out`. Errors as of Cache::begin and
  /// Model::forward, and nothing was appended.
  Result<void> append(std::span<const Append> appends, std::span<const TokenId> ids, std::span<const int> rows,
                      std::vector<std::byte>* out);

  /// What was done, as Outcome::record says it.
  std::string record() const;

 private:
  const model::Model* model_ = nullptr;
  Conditions conditions_;
  std::unique_ptr<Cache> cache_;
  ObservedCache* observed_ = nullptr;
  std::unique_ptr<base::ThreadPool> pool_;
  base::Buffer workspace_;
  int workspace_rows_ = 0;
};

Result<Outcome> run(const model::Model& model, const Schedule& schedule, const Conditions& conditions,
                    const KeepGoing& go);

/// Token ids that the engine's own step loop makes, cached or from scratch.
Result<Outcome> generate(const engine::Loaded& loaded, const Ids& prompt, int n, const SamplingParams& sampling,
                         bool recompute, const Conditions& conditions, const KeepGoing& go);

}  // namespace stet::lab
