// A model that reads a text: what eval and flips compare.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/buffer.hpp"
#include "engine/loaded.hpp"
#include "kernels/run.hpp"
#include "lab/eval.hpp"
#include "lab/wrap.hpp"
#include "model/model.hpp"
#include "stet/cache.hpp"

namespace stet::lab {

/// Rows of a step: enough for the kernels' tiles, and of a vocabulary of 50,000 two times 13 MB of logits.
inline constexpr Pos kEvalChunk = 64;

/// What is compared: a model, which must outlive it, and how its cache stores.
struct EvalSubject {
  const model::Model* model;
  CacheSpec cache;
  std::string name, kv;
};

/// With the cache that the model asks for.
EvalSubject eval_subject(const model::Model& model);

/// With a cache in these codecs. Code::invalid_argument names a layer that there is not.
Result<EvalSubject> eval_subject(const model::Model& model, const KvCodecs& kv);

/// One sequence of a subject, with all that a forward needs.
class EvalReader {
 public:
  /// For up to `longest` tokens. Code::capacity when there is no memory for it. `wrap`: what is done to its cache.
  static Result<EvalReader> make(const EvalSubject& subject, Pos longest, const Wrap& wrap = {});

  /// Back to an empty sequence.
  Result<void> rewind() { return cache_->truncate(seq_, 0); }

  /// Appends the ids, at most kEvalChunk, and keeps the logits of all of them, or of the last one alone.
  Result<void> read(const kernels::Compute& on, std::span<const TokenId> ids, bool last_only = false);

  /// The r-th of the logits that the last read kept: as numbers, and as they are.
  std::vector<double> row(std::size_t r) const;
  std::span<const std::byte> bytes(std::size_t r) const;

 private:
  explicit EvalReader(const model::Model& model) : model_(&model) {}
  std::size_t vocab() const { return static_cast<std::size_t>(model_->config().vocab); }

  const model::Model* model_;
  std::unique_ptr<Cache> cache_;
  Seq seq_;
  base::Buffer workspace_, logits_;
};

/// The input's ids, all in the vocabulary. Code::unsupported for text without a tokenizer, Code::invalid_argument for
/// an id that there is not.
Result<std::vector<TokenId>> eval_ids(const EvalInput& input, const engine::Loaded& loaded);

}  // namespace stet::lab
