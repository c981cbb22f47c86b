// The tensors of a GPT-2 checkpoint: what they are called, what shape they have.
#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "weights/checkpoint.hpp"
#include "weights/tensor_check.hpp"

namespace stet::weights {

std::vector<TensorSpec> gpt2_tensors(const ModelConfig& config) {
  const std::int64_t C = config.width, F = config.inner;
  // Random values: at width 768 the deviations are those of 0.02 to 0.06 that let attention differ from a plain mean
  // and logits from each other; other widths keep the deviation of the products.
  const auto matrix = [](double std_at_768, std::int64_t in) {
    return std_at_768 * std::sqrt(768.0 / static_cast<double>(in));
  };
  std::vector<TensorSpec> all;
  all.reserve(static_cast<std::size_t>(config.layers) * 12 + 5);
  const auto add = [&](std::string name, std::vector<std::int64_t> shape, double std, double mean = 0) {
    all.push_back({std::move(name), std::move(shape), mean, std});
  };
  add("wte.weight", {config.vocab, C}, matrix(0.02, C));
  add("wpe.weight", {config.context, C}, matrix(0.01, C));
  for (int layer = 0; layer < config.layers; ++layer) {
    const std::string h = fmt::format("h.{}.", layer);
    add(h + "ln_1.weight", {C}, 0.1, 1);
    add(h + "ln_1.bias", {C}, 0.02);
    add(h + "attn.c_attn.weight", {C, 3 * C}, matrix(0.06, C));
    add(h + "attn.c_attn.bias", {3 * C}, 0.02);
    add(h + "attn.c_proj.weight", {C, C}, matrix(0.03, C));
    add(h + "attn.c_proj.bias", {C}, 0.02);
    add(h + "ln_2.weight", {C}, 0.1, 1);
    add(h + "ln_2.bias", {C}, 0.02);
    add(h + "mlp.c_fc.weight", {C, F}, matrix(0.05, C));
    add(h + "mlp.c_fc.bias", {F}, 0.02);
    add(h + "mlp.c_proj.weight", {F, C}, matrix(0.06, F));
    add(h + "mlp.c_proj.bias", {C}, 0.02);
  }
  add("ln_f.weight", {C}, 0.1, 1);
  add("ln_f.bias", {C}, 0.02);
  if (!config.tied_head) add(std::string(kHead), {config.vocab, C}, matrix(0.02, C));
  return all;
}

Result<std::string> check_gpt2(const Source& source, const ModelConfig& config, const std::string& where) {
  // Old versions of transformers saved the causal mask's constants.
  const Naming naming{"transformer.", "h.", {".attn.bias", ".attn.masked_bias"}, {}};
  return compare_tensors(source, config, gpt2_tensors(config), naming, where);
}

}  // namespace stet::weights
