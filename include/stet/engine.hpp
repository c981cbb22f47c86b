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

struct Request {
  std::vector<TokenId> prompt;  // at least one id, fewer than the context
  int max_new = 100;            // 0: prefill only
  SamplingParams sampling;
  std::uint64_t sequence = 0;     // keys the random numbers together with sampling.seed
  std::vector<std::string> stop;  // ends the text before the first of these (needs a tokenizer)
  bool ignore_eos = false;
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

  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  ~Engine();

  const ModelInfo& info() const noexcept;
  const EngineOptions& options() const noexcept;     // with threads and max_len resolved
  const Tokenizer* tokenizer() const noexcept;       // null: ids only
  const std::string& no_tokenizer() const noexcept;  // why the vocabulary that is there cannot be used; else empty
  CacheUsage cache_usage() const noexcept;           // peak `used`, `tokens` and `seqs` of the last generate()

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
