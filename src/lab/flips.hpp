// What a reduced type changes in greedy text, and what it does not: logits move away from those of f32, somewhere the
// most likely token becomes another one, and yet with and without a cache every bit is the same. Reported numbers, not
// results under the numerics contract; the equality of bits is one.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/eval.hpp"
#include "lab/wrap.hpp"
#include "report/report.hpp"
#include "stet/result.hpp"
#include "stet/types.hpp"

namespace stet::lab {

struct FlipOptions {
  std::string model;
  std::vector<DType> dtypes = {DType::f16, DType::bf16, DType::int8, DType::int4};  // of weights, f32 left out
  std::vector<KvCodecs> kv = {{Codec::f16, Codec::f16},
                              {Codec::bf16, Codec::bf16},
                              {Codec::int8, Codec::int8},
                              {Codec::int4, Codec::int4}};  // of caches, with f32 weights
  Pos prompt = 0;   // tokens of the input that are read; 0: as many as leave room
  int steps = 0;    // tokens that f32 makes; 0: 100, fewer at the context's end
  int threads = 0;  // 0: as many as this process may run on
  Wrap wrap;        // damages the caches that are read token by token
};

/// The first step where the most likely token is not that of f32. Until there a text made in this type is the same.
struct Flip {
  int step = 0;  // 1: the first new token
  TokenId was = 0, is = 0;
  std::string was_text, is_text;  // empty without a tokenizer
  double margin = 0;              // by how much f32 preferred its own token to this one
};

/// Every type reads the tokens that f32 made, so that at each step the same question is asked of both.
struct FlipRow {
  DType dtype = DType::f32;       // of the weights
  std::string kv;                 // how the cache stores
  std::vector<double> distances;  // of each step: the largest |logit - logit of f32|
  double largest = 0, mean = 0;   // of them
  double relative = 0;            // the largest as a share of f32's largest |logit|
  int flips = 0;                  // steps with another most likely token (ties: the lowest id)
  std::optional<Flip> first;

  /// Logits of each step, token by token from the cache, against those of the whole prefix read anew into an empty one.
  std::size_t compared = 0, differing = 0;  // values, bit by bit
  bool equal() const noexcept { return compared > 0 && differing == 0; }
};

struct FlipReport {
  std::string model;
  Pos prompt = 0;
  int steps = 0;
  std::vector<TokenId> ids;   // that f32 made
  std::string text;           // of them; empty without a tokenizer
  std::vector<FlipRow> rows;  // f32 first, then weights, then caches
  bool equal() const noexcept;
};

/// At most two models are in memory. Errors: those of evaluate(), and Code::invalid_argument for a prompt and steps
/// that do not fit into the context, both numbers named.
Result<FlipReport> flips(const FlipOptions& options, const EvalInput& input, const EvalCallbacks& callbacks);

/// Table, logit distance by step, and what f32 wrote. Without json.
report::Report report_of(const FlipReport& report);

}  // namespace stet::lab
