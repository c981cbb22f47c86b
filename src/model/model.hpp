// A model: weights in memory and one forward call that serves prefill, chunks, decoding and ragged batches alike.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/buffer.hpp"
#include "base/digest.hpp"
#include "core/config.hpp"
#include "kernels/run.hpp"
#include "stet/cache.hpp"
#include "weights/source.hpp"

namespace stet::model {

/// Rows of a step whose logits are wanted, and where they go: rows.size() x vocab values of the model's dtype.
struct LogitsOut {
  std::span<const int> rows;  // strictly ascending
  std::byte* data = nullptr;
};

/// Immutable once loaded: any number of caches, and of threads with a Compute and workspace each, may share one.
class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelConfig& config() const noexcept = 0;
  virtual DType dtype() const noexcept = 0;    // of arithmetic, activations and logits
  virtual DType weights() const noexcept = 0;  // of the matrices
  virtual CacheSpec cache_spec() const = 0;
  virtual std::size_t weight_bytes() const noexcept = 0;

  /// Bytes of activations for steps of up to `rows` rows.
  virtual std::size_t workspace_bytes(int rows) const noexcept = 0;

  /// Runs the rows of `step`; ids[r] is the token of row r. Reads positions from step.slices(), writes every layer's
  /// keys and values into the step, which the caller commits or drops. `workspace` holds at least workspace_bytes(rows)
  /// bytes. Code::invalid_argument names an id beyond the vocabulary or a position beyond the context; the step is then
  /// only fit to be dropped.
  virtual Result<void> forward(const kernels::Compute& on, Step& step, std::span<const TokenId> ids, LogitsOut out,
                               base::Buffer& workspace) const = 0;

  /// Of every weight as it is held: matrices as packed, vectors in the type of the arithmetic. Reads them all on the
  /// first call (about a tenth of a second a gigabyte), and then remembers.
  base::Digest weights_digest() const;

  /// All that shapes stored keys and values beside the weights' own bytes, one `key=value` a line in a fixed order:
  /// names are those of Hugging Face's configs, numbers the shortest that read back the same. What the family does not
  /// use is left out, and so is what changes no row: the ids of special tokens.
  std::string canonical_config() const;

 private:
  /// Feeds all tensors in a fixed order.
  virtual void hash_weights(base::Hasher& hasher) const = 0;

  mutable std::once_flag digested_;
  mutable base::Digest digest_;
};

/// The matrices of one layer, which a token passes one after the other; those that are packed side by side are one.
struct MatrixShape {
  int in = 0, out = 0;
};
std::vector<MatrixShape> layer_matrices(const ModelConfig& config);

struct Sizes {
  std::size_t weight_bytes = 0, workspace_bytes = 0;
  std::int64_t parameters = 0;
  CacheSpec cache_spec;
};

/// What load() would hold, from the config alone; workspace for steps of up to `rows` rows.
Sizes sizes(const ModelConfig& config, DType weights, int rows);

/// Loads a model of any family whose names carry `prefix` (weights::check_tensors found it), with matrices of `dtype`
/// (vectors stay in the type of the arithmetic). `progress` is told the fraction loaded and returns false to give up
/// (Code::interrupted).
Result<std::unique_ptr<Model>> load(const ModelConfig& config, const weights::Source& source, const std::string& prefix,
                                    DType dtype, const std::function<bool(double)>& progress);

// The same for one family.
Sizes gpt2_sizes(const ModelConfig& config, DType weights, int rows);
Sizes llama_sizes(const ModelConfig& config, DType weights, int rows);
Result<std::unique_ptr<Model>> load_gpt2(const ModelConfig& config, const weights::Source& source,
                                         const std::string& prefix, DType dtype,
                                         const std::function<bool(double)>& progress);
Result<std::unique_ptr<Model>> load_llama(const ModelConfig& config, const weights::Source& source,
                                          const std::string& prefix, DType dtype,
                                          const std::function<bool(double)>& progress);

}  // namespace stet::model
