// What a weight type costs in quality: the same text read by the model in f32 and in that type, and their predictions
// compared. Reported numbers, not results under the numerics contract.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

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
  Pos tokens = 0;   // read at most; 0: all
  Pos window = 0;   // tokens of a window; 0: the model's context
  int threads = 0;  // 0: as many as this process may run on
};

/// One weight type over all scored positions. Logarithms are natural.
struct EvalRow {
  DType dtype = DType::f32;
  double nll = 0;                 // mean of -log(probability of the token that came)
  double perplexity = 0;          // exp(nll)
  double kl = 0;                  // mean of KL(f32 || type) over positions, in nats
  double top1 = 0;                // share of positions whose most likely token is that of f32 (ties: the lowest id)
  double max_logit_distance = 0;  // largest |logit - logit of f32|
  double max_logit_relative = 0;  // the same as a share of f32's largest |logit|
  std::size_t weight_bytes = 0;
};

struct EvalReport {
  Pos tokens = 0, window = 0;
  Pos scored = 0;             // tokens that were predicted: all but the first of each window
  std::vector<EvalRow> rows;  // f32 first, then the others as asked for
};

struct EvalCallbacks {
  std::function<void(std::string_view)> on_progress;  // what is being done now
  std::function<bool()> keep_going;                   // false: Code::interrupted
};

/// Cuts the tokens into windows, each read from an empty cache. f32 is always run and each other type beside it, one
/// after the other: at most two models are in memory, and of logits only those of a chunk of rows. Errors:
/// Code::unsupported for text without a tokenizer, Code::invalid_argument for fewer than 2 tokens, an id beyond the
/// vocabulary or a window beyond the context, Code::corrupt for logits that are not finite, and those of
/// engine::load.
Result<EvalReport> evaluate(const EvalOptions& options, const EvalInput& input, const EvalCallbacks& callbacks);

}  // namespace stet::lab
