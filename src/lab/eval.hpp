// What a weight type, or a codec of the cache, costs in quality: the same text read with and without it, and the
// predictions compared. Reported numbers, not results under the numerics contract.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "stet/engine.hpp"
#include "stet/result.hpp"
#include "stet/types.hpp"

namespace stet::lab {

/// Either text, which needs a model with a tokenizer, or ids.
struct EvalInput {
  std::string name;  // of the file, for errors
  std::string text;
  std::vector<TokenId> ids;
  bool is_text = false;
};

struct EvalOptions {
  std::string model;
  std::vector<DType> dtypes = {DType::f32, DType::bf16, DType::f16, DType::int8, DType::int4};
  std::vector<KvCodecs>
      kv;           // any: these codecs are compared, each alone, and the weights are of the one type in dtypes
  Pos tokens = 0;   // read at most; 0: all
  Pos window = 0;   // tokens of a window; 0: the model's context
  int threads = 0;  // 0: as many as this process may run on
};

/// One weight type or codec over all scored positions. "Reference" is the first row: f32 weights, or the same weights
/// with a cache in the type of the arithmetic (f32, beside f64 weights f64). Logarithms are natural.
struct EvalRow {
  DType dtype = DType::f32;
  std::string kv;                 // how the cache stores: "f32", "int8,int4" (K and V), "0-1:int4" (some layers)
  double nll = 0;                 // mean of -log(probability of the token that came)
  double perplexity = 0;          // exp(nll)
  double kl = 0;                  // mean of KL(reference || row) over positions, in nats
  double top1 = 0;                // share of positions whose most likely token is the reference's (ties: the lowest id)
  double max_logit_distance = 0;  // largest |logit - logit of the reference|
  double max_logit_relative = 0;  // the same as a share of the reference's largest |logit|
  std::size_t weight_bytes = 0;
  std::size_t cache_bytes_per_token = 0;  // over all layers, scales included

  bool poor() const noexcept { return top1 < kPoorTop1; }
};

struct EvalReport {
  Pos tokens = 0, window = 0;
  Pos scored = 0;             // tokens that were predicted: all but the first of each window
  std::vector<EvalRow> rows;  // the reference first, then the others as asked for
};

struct EvalCallbacks {
  std::function<void(std::string_view)> on_progress;  // what is being done now
  std::function<bool()> keep_going;                   // false: Code::interrupted
};

/// Cuts the tokens into windows, each read from an empty cache. The reference is always run and each other row beside
/// it, one after the other: at most two models (with codecs one) and two caches are in memory, and of logits only those
/// of a chunk of rows. Errors: Code::unsupported for text without a tokenizer, Code::invalid_argument for fewer than 2
/// tokens, an id beyond the vocabulary, a window beyond the context, codecs for layers that there are not or for more
/// than one weight type, Code::corrupt for logits that are not finite, and those of engine::load.
Result<EvalReport> evaluate(const EvalOptions& options, const EvalInput& input, const EvalCallbacks& callbacks);

}  // namespace stet::lab
