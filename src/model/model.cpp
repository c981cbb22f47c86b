#include "model/model.hpp"

#include <fmt/format.h>

#include <numeric>

#include "model/loader.hpp"

namespace stet::model {

Result<std::vector<Pos>> check_inputs(const ModelConfig& config, std::span<const Slice> slices,
                                      std::span<const TokenId> ids) {
  std::vector<Pos> positions(ids.size());
  for (const Slice& slice : slices) {
    if (slice.first + slice.tokens > config.context) {
      return fail(Code::invalid_argument, fmt::format("position {} is beyond the model's context of {}",
                                                      slice.first + slice.tokens - 1, config.context));
    }
    std::iota(positions.begin() + slice.row, positions.begin() + slice.row + slice.tokens, slice.first);
  }
  for (const TokenId id : ids) {
    if (id < 0 || id >= config.vocab) {
      return fail(Code::invalid_argument, fmt::format("token id {} is not in the vocabulary of {}", id, config.vocab));
    }
  }
  return positions;
}

CacheSpec cache_spec_of(const ModelConfig& config, Codec codec) {
  CacheSpec spec;
  for (int layer = 0; layer < config.layers; ++layer) {
    LayerSpec one;
    one.kv_heads = config.kv_heads;
    one.k_dim = one.v_dim = config.head_dim;
    one.k = one.v = codec;
    if (!config.windows.empty()) one.span.window = config.windows[static_cast<std::size_t>(layer)];
    spec.layers.push_back(one);
  }
  return spec;
}

Failure not_finite(const char* what, DType weights) {
  return fail(Code::unsupported, fmt::format("an activation before {} is not finite, which {} weights cannot work with",
                                             what, name_of(weights)));
}

std::vector<MatrixShape> layer_matrices(const ModelConfig& c) {
  if (c.family == "gpt2") return {{c.width, 3 * c.width}, {c.width, c.width}, {c.width, c.inner}, {c.inner, c.width}};
  const int q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  return {{c.width, q + 2 * kv}, {q, c.width}, {c.width, 2 * c.inner}, {c.inner, c.width}};
}

Sizes sizes(const ModelConfig& config, DType weights, int rows) {
  return config.family == "gpt2" ? gpt2_sizes(config, weights, rows) : llama_sizes(config, weights, rows);
}

Result<std::unique_ptr<Model>> load(const ModelConfig& config, const weights::Source& source, const std::string& prefix,
                                    DType dtype, const std::function<bool(double)>& progress) {
  if (config.family == "gpt2") return load_gpt2(config, source, prefix, dtype, progress);
  return load_llama(config, source, prefix, dtype, progress);
}

}  // namespace stet::model
