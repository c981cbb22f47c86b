// The whole engine: a model, its tokenizer, its cache and a step loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stet/cache.hpp"
#include "stet/result.hpp"
#include "stet/sampling.hpp"
#include "stet/tokenizer.hpp"
#include "stet/types.hpp"

namespace stet {

/// A layout (cache.hpp), or `none`, which recomputes the whole prefix for every token: the loop that a KV cache
/// replaces, kept to measure and verify against.
enum class CacheMode : std::uint8_t { contiguous, growing, paged, none };
const char* name_of(CacheMode mode) noexcept;

/// How layers [first, last] store keys and values.
struct KvCodecs {
  Codec k = Codec::f32, v = Codec::f32;
  int first = 0;
  int last = -1;  // -1: to the last layer
};

struct EngineOptions {
  DType dtype = DType::f32;  // of the weights; arithmetic is f64 for f64, else f32
  int threads = 0;           // 0: as many as this process may run on
  bool pin = false;          // keep each thread on one CPU
  CacheMode cache = CacheMode::contiguous;
  Pos page_tokens = 16;      // paged: tokens in a page
  Pos pool_tokens = 0;       // paged: tokens that all sequences can hold together; 0: max_seqs x max_len
  std::vector<KvCodecs> kv;  // later ones win; layers that none names keep the type of the arithmetic
  std::optional<Span> span;  // what queries of all layers see, instead of what the model says
  int chunk = 256;           // most tokens of a prompt that one step takes
  int max_seqs = 1;          // sequences decoded together
  Pos max_len = 0;           // tokens one sequence may hold; 0: the model's context
  bool poison = false;
  std::optional<std::size_t> prefix_bytes;  // keep what requests stored for later ones, up to so many bytes; none: no
  double audit = 0;                         // recompute this share of prefix hits and compare the bits
  bool map = false;                         // note the storage in use when most was (CacheReport::pages)
};

/// What a model is and costs.
struct ModelInfo {
  std::string name, family, activation;
  int layers = 0, heads = 0, kv_heads = 0, head_dim = 0, width = 0, inner = 0, vocab = 0;
  Pos context = 0;
  bool tied_head = true, has_tokenizer = false;
  std::optional<TokenId> bos, eos;
  std::int64_t parameters = 0;
  std::size_t weight_bytes = 0;           // as held in memory with this dtype, packing included
  std::size_t cache_bytes_per_token = 0;  // with these codecs
  std::size_t cache_bytes = 0;            // that the cache will reserve
  std::string cache_codecs;               // "f32", "int8 and int4", "layers 0-1 f32, 2-11 int8"
  std::size_t scratch_bytes = 0;          // activations of the largest step
};

/// What becomes of a text that is longer than a sequence may be (EngineOptions::max_len, W tokens).
///   stop       it ends there; a prompt must be shorter.
///   recompute  each further token is what a fresh forward of the last W tokens, at positions 0 to W - 1, says: exact,
///              and as slow as having no cache. Prompts may be longer too.
enum class PastLimit : std::uint8_t { stop, recompute };
const char* name_of(PastLimit past_limit) noexcept;

struct Request {
  std::vector<TokenId> prompt;  // at least one id; with PastLimit::stop fewer than a sequence may hold
  int max_new = 100;            // 0: prefill only
  SamplingParams sampling;
  std::string salt;               // prefixes are shared only among requests of one salt
  std::uint64_t sequence = 0;     // keys the random numbers together with sampling.seed
  std::vector<std::string> stop;  // ends the text before the first of these (needs a tokenizer)
  bool ignore_eos = false;
  PastLimit past_limit = PastLimit::stop;
};

/// `no_room`: the sequence can never fit into the cache's pool, however empty; Completion::error says by how much.
enum class StopReason : std::uint8_t { length, eos, stop_string, context, no_room, interrupted };
const char* name_of(StopReason reason) noexcept;

struct Completion {
  std::vector<TokenId> ids;  // new ones, the end token included
  std::string text;          // of the new ids, without end token and stop string; empty without a tokenizer
  StopReason reason = StopReason::length;
  double prefill_seconds = 0;  // steps in which this request only read its prompt; shared steps count fully
  double decode_seconds = 0;   // from the first new token to the last
  Pos cached_tokens = 0;       // of the prompt, those that were not computed but found in the prefix cache
  std::string miss;            // why not more were found, if so (docs/prefix_cache.md); empty without a prefix cache
  int past_limit = 0;          // of the new ids, those that a whole window was computed for
  int preempted = 0;           // how often its rows were given up for others, and computed anew
  std::string error;           // with no_room; else empty
};

/// A new token of request `index`. `piece` is the text that became certain with it: it may be empty (half a character,
/// or the start of a stop string), and the last call of a request (`id` empty) brings the rest.
struct TokenEvent {
  std::size_t index = 0;
  std::optional<TokenId> id;
  std::string_view piece;
};

/// Logits of one sequence: `rows` x `vocab` values, of float (f32) or double (f64).
struct Logits {
  DType type = DType::f32;
  std::size_t rows = 0, vocab = 0;
  std::vector<std::byte> data;
};

/// What the cache holds, and how its reuse went since the engine was loaded.
struct CacheReport {
  CacheUsage usage;             // when most tokens were stored in the last generate()
  std::vector<PageInfo> pages;  // then, with EngineOptions::map
  struct Kept {                 // a sequence of the prefix cache, now
    Pos tokens = 0;
    std::string salt;
    bool pinned = false;
  };
  std::vector<Kept> kept;      // least recently used first
  std::size_t kept_bytes = 0;  // of their cells, shared ones once
  std::uint64_t lookups = 0, hits = 0, full_hits = 0, tokens_asked = 0, tokens_hit = 0, evicted = 0;
  std::vector<std::pair<std::string, std::uint64_t>> misses;  // reasons met, and how often
  std::uint64_t audited = 0, audits_skipped = 0;              // skipped: the cache had no room for them
  std::uint64_t audits_different = 0;
  std::string first_difference;  // layer and position of the first audit that differed; empty: none did
};

/// Below this share of equal most likely tokens a codec of the cache is called poor: at 0.9 every tenth token of greedy
/// text would be another one.
inline constexpr double kPoorTop1 = 0.9;

/// How often a cache in reduced codecs predicts the same most likely token as one in the type of the arithmetic.
struct CodecCheck {
  int positions = 0, same = 0;
  bool poor() const noexcept { return same < kPoorTop1 * positions; }
};

/// One thread uses an engine at a time.
class Engine {
 public:
  /// `model`: a Hugging Face folder, or "random:gpt2", "random:char,ctx=16384", ... A model without vocabulary
  /// files loads without a tokenizer. `progress` (may be empty) is told the fraction loaded; false gives up
  /// (Code::interrupted).
  static Result<Engine> load(const std::string& model, const EngineOptions& options,
                             const std::function<bool(double)>& progress = {});

  /// What load() would hold, from the config alone: no weight is read.
  static Result<ModelInfo> inspect(const std::string& model, const EngineOptions& options);

  /// Code::capacity, need and available named, when this process may not use as much memory as `info` says.
  static Result<void> check_fits(const ModelInfo& info);

  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  ~Engine();

  const ModelInfo& info() const noexcept;
  const EngineOptions& options() const noexcept;     // with threads and max_len resolved
  const Tokenizer* tokenizer() const noexcept;       // null: ids only
  const std::string& no_tokenizer() const noexcept;  // why the vocabulary that is there cannot be used; else empty
  CacheUsage cache_usage() const noexcept;           // peak `used`, `tokens` and `seqs` of the last generate()
  CacheReport cache_report() const;

  /// Writes all sequences of the prefix cache into one file (docs/kv_format.md) that replaces an old one at once; tells
  /// how many. Code::unsupported without a prefix cache, Code::not_found when it keeps no sequence, Code::io and
  /// Code::interrupted: an old file is left as it was.
  Result<std::size_t> save_cache(const std::string& path, const std::function<bool()>& keep_going = {});

  /// Puts the sequences of such a file into the prefix cache; tells how many the file has, and the cache now. A file
  /// of another model, config or numerics, or a damaged one, is refused with the reason and nothing is changed.
  /// `reencode`: take rows of other codecs too, which loses what their codec lost and what this one's does.
  struct Restored {
    std::size_t saved = 0, kept = 0;
  };
  Result<Restored> load_cache(const std::string& path, bool reencode = false);

  /// Reads some of `ids` in both ways. A cache whose codecs are wide is not compared: `positions` is then 0.
  Result<CodecCheck> check_codecs(std::span<const TokenId> ids) const;

  /// Keeps what is stored of these ids from being evicted until unpin. Code::not_found when it is not all there.
  Result<std::uint64_t> pin(std::span<const TokenId> ids, const std::string& salt = {});
  Result<void> unpin(std::uint64_t pin);

  /// Checks one request without running it: sampling ranges, ids, prompt against context (both numbers named).
  Result<void> check(const Request& request) const;

  /// Runs all requests, at most max_seqs at a time, as ragged batches. Where they do not fit into the cache's pool
  /// together some wait or start over, which changes no bit; one that could never fit ends with `no_room` and the
  /// others go on. `keep_going` (may be empty) is asked before every step; when it or `on_token` (may be empty) answers
  /// false everything stops: what was made so far is returned with reason `interrupted`. An error leaves no sequence
  /// open.
  Result<std::vector<Completion>> generate(std::span<const Request> requests,
                                           const std::function<bool(const TokenEvent&)>& on_token = {},
                                           const std::function<bool()>& keep_going = {});

  /// Logits of every position of `ids`. Code::interrupted when `keep_going`, asked before every step, answers false.
  Result<Logits> logits(std::span<const TokenId> ids, const std::function<bool()>& keep_going = {});

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stet
