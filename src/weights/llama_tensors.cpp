// The tensors of a Llama, Mistral or Qwen2 checkpoint: what they are called, what shape they have.
#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "weights/checkpoint.hpp"
#include "weights/tensor_check.hpp"

namespace stet::weights {

std::vector<TensorSpec> llama_tensors(const ModelConfig& config) {
  const std::int64_t C = config.width, F = config.inner, V = config.vocab;
  const std::int64_t Q = std::int64_t{config.heads} * config.head_dim;
  const std::int64_t K = std::int64_t{config.kv_heads} * config.head_dim;
  // Random values: as in gpt2_tensors, queries and keys are large enough that attention differs from a plain mean,
  // the head that logits differ from each other, and products keep their deviation at every width.
  const auto matrix = [](double std_at_768, std::int64_t in) {
    return std_at_768 * std::sqrt(768.0 / static_cast<double>(in));
  };
  std::vector<TensorSpec> all;
  all.reserve(static_cast<std::size_t>(config.layers) * 16 + 3);
  const auto norm = [&](std::string name) { all.push_back({std::move(name), {C}, 1, 0.1}); };
  const auto linear = [&](const std::string& name, std::int64_t out, std::int64_t in, double std, bool bias) {
    all.push_back({name + ".weight", {out, in}, 0, matrix(std, in)});
    if (bias) all.push_back({name + ".bias", {out}, 0, 0.1});
  };
  linear("embed_tokens", V, C, 0.02, false);
  for (int layer = 0; layer < config.layers; ++layer) {
    const std::string h = fmt::format("layers.{}.", layer);
    norm(h + "input_layernorm.weight");
    linear(h + "self_attn.q_proj", Q, C, 0.06, config.qkv_bias);
    linear(h + "self_attn.k_proj", K, C, 0.06, config.qkv_bias);
    linear(h + "self_attn.v_proj", K, C, 0.06, config.qkv_bias);
    linear(h + "self_attn.o_proj", C, Q, 0.03, config.out_bias);
    norm(h + "post_attention_layernorm.weight");
    linear(h + "mlp.gate_proj", F, C, 0.05, config.mlp_bias);
    linear(h + "mlp.up_proj", F, C, 0.05, config.mlp_bias);
    linear(h + "mlp.down_proj", C, F, 0.06, config.mlp_bias);
  }
  norm("norm.weight");
  if (!config.tied_head) all.push_back({std::string(kHead), {V, C}, 0, matrix(0.02, C)});
  return all;
}

Result<std::string> check_llama(const Source& source, const ModelConfig& config, const std::string& where) {
  // Versions of transformers before 4.32 saved the rotary frequencies of each layer.
  const Naming naming{"model.", "layers.", {".self_attn.rotary_emb.inv_freq"}, {"rotary_emb.inv_freq"}};
  return compare_tensors(source, config, llama_tensors(config), naming, where);
}

std::vector<TensorSpec> tensors_of(const ModelConfig& config) {
  return is_llama(config) ? llama_tensors(config) : gpt2_tensors(config);
}

Result<std::string> check_tensors(const Source& source, const ModelConfig& config, const std::string& where) {
  return is_llama(config) ? check_llama(source, config, where) : check_gpt2(source, config, where);
}

}  // namespace stet::weights
