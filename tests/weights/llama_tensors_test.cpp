// Which tensors a Llama, Mistral or Qwen2 has, and what a checkpoint may have in their place.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>

#include "support.hpp"
#include "weights/checkpoint.hpp"

namespace stet::weights {
namespace {

/// Every size differs from the others.
ModelConfig small_config() {
  ModelConfig config;
  config.family = "llama";
  config.layers = 2;
  config.heads = 6;
  config.kv_heads = 3;
  config.head_dim = 4;
  config.width = 10;
  config.inner = 20;
  config.vocab = 30;
  config.context = 16;
  config.activation = Activation::silu;
  config.tied_head = false;
  return config;
}

std::vector<TensorInfo> listing(const ModelConfig& config, const std::string& prefix = "") {
  std::vector<TensorInfo> tensors;
  for (const TensorSpec& spec : llama_tensors(config)) {
    tensors.push_back({(spec.name == "lm_head.weight" ? "" : prefix) + spec.name, DType::f32, spec.shape});
  }
  return tensors;
}

Result<std::string> check(const ModelConfig& config, std::vector<TensorInfo> tensors) {
  return check_tensors(Listing(std::move(tensors)), config, "m");
}

using Shapes = std::map<std::string, std::vector<std::int64_t>>;

Shapes shapes(const ModelConfig& config) {
  Shapes all;
  for (const TensorSpec& spec : tensors_of(config)) all[spec.name] = spec.shape;
  return all;
}

// Names and [out, in] shapes as LlamaForCausalLM's state_dict() has them.
TEST(LlamaTensors, NamesAndShapes) {
  ModelConfig config = small_config();
  config.layers = 1;
  Shapes expected = {{"embed_tokens.weight", {30, 10}},
                     {"layers.0.input_layernorm.weight", {10}},
                     {"layers.0.self_attn.q_proj.weight", {24, 10}},
                     {"layers.0.self_attn.k_proj.weight", {12, 10}},
                     {"layers.0.self_attn.v_proj.weight", {12, 10}},
                     {"layers.0.self_attn.o_proj.weight", {10, 24}},
                     {"layers.0.post_attention_layernorm.weight", {10}},
                     {"layers.0.mlp.gate_proj.weight", {20, 10}},
                     {"layers.0.mlp.up_proj.weight", {20, 10}},
                     {"layers.0.mlp.down_proj.weight", {10, 20}},
                     {"norm.weight", {10}},
                     {"lm_head.weight", {30, 10}}};
  EXPECT_EQ(shapes(config), expected);
  config.tied_head = true;
  expected.erase("lm_head.weight");
  EXPECT_EQ(shapes(config), expected);
  config.qkv_bias = true;
  expected["layers.0.self_attn.q_proj.bias"] = {24};
  expected["layers.0.self_attn.k_proj.bias"] = {12};
  expected["layers.0.self_attn.v_proj.bias"] = {12};
  EXPECT_EQ(shapes(config), expected);
  config.out_bias = true;
  expected["layers.0.self_attn.o_proj.bias"] = {10};
  EXPECT_EQ(shapes(config), expected);
  config.mlp_bias = true;
  expected["layers.0.mlp.gate_proj.bias"] = {20};
  expected["layers.0.mlp.up_proj.bias"] = {20};
  expected["layers.0.mlp.down_proj.bias"] = {10};
  EXPECT_EQ(shapes(config), expected);
}

// The parameter counts of the published checkpoints: 1.24 B, 7.24 B and 0.49 B, as their model cards' safetensors
// summaries say.
TEST(LlamaTensors, CountAsPublished) {
  struct Published {
    const char *family, *name;
    int layers, heads, kv_heads, head_dim, width, inner, vocab;
    bool tied;
    std::int64_t parameters;
  };
  const Published models[] = {{"llama", "Llama-3.2-1B", 16, 32, 8, 64, 2048, 8192, 128256, true, 1'235'814'400},
                              {"mistral", "Mistral-7B-v0.1", 32, 32, 8, 128, 4096, 14336, 32000, false, 7'241'732'096},
                              {"qwen2", "Qwen2.5-0.5B", 24, 14, 2, 64, 896, 4864, 151936, true, 494'032'768}};
  for (const Published& m : models) {
    ModelConfig config = small_config();
    config.family = m.family;
    config.layers = m.layers;
    config.heads = m.heads;
    config.kv_heads = m.kv_heads;
    config.head_dim = m.head_dim;
    config.width = m.width;
    config.inner = m.inner;
    config.vocab = m.vocab;
    config.tied_head = m.tied;
    config.qkv_bias = config.family == "qwen2";
    std::int64_t sum = 0;
    for (const TensorSpec& spec : tensors_of(config)) sum += TensorInfo{spec.name, DType::f32, spec.shape}.elements();
    EXPECT_EQ(sum, m.parameters) << m.name;
  }
}

TEST(LlamaTensors, FamiliesAreToldApart) {
  ModelConfig config = small_config();
  for (const char* family : {"llama", "mistral", "qwen2"}) {
    config.family = family;
    EXPECT_TRUE(is_llama(config));
    EXPECT_EQ(tensors_of(config).front().name, "embed_tokens.weight");
  }
  config.family = "gpt2";
  EXPECT_FALSE(is_llama(config));
  EXPECT_EQ(tensors_of(config).front().name, "wte.weight");
  expect_error(check(config, {}), Code::corrupt, "m: missing tensors: wte.weight");
}

TEST(CheckLlama, FindsThePrefix) {
  ModelConfig config = small_config();
  for (const bool tied : {true, false}) {
    config.tied_head = tied;
    for (const std::string prefix : {"", "model."}) {
      const auto found = check(config, listing(config, prefix));
      ASSERT_TRUE(found) << found.error().message;
      EXPECT_EQ(*found, prefix);
    }
  }
}

TEST(CheckLlama, IgnoresFrequenciesAndATiedHead) {
  ModelConfig config = small_config();
  config.tied_head = true;
  for (const std::string prefix : {"", "model."}) {
    auto tensors = listing(config, prefix);
    tensors.push_back({prefix + "layers.0.self_attn.rotary_emb.inv_freq", DType::f32, {2}});
    tensors.push_back({prefix + "layers.1.self_attn.rotary_emb.inv_freq", DType::f16, {2}});
    tensors.push_back({prefix + "rotary_emb.inv_freq", DType::f32, {2}});
    tensors.push_back({"lm_head.weight", DType::bf16, {30, 10}});
    const auto found = check(config, tensors);
    EXPECT_TRUE(found) << found.error().message;
  }
}

TEST(CheckLlama, NamesEachFault) {
  const ModelConfig config = small_config();
  struct Case {
    std::string error;
    std::function<void(std::vector<TensorInfo>&)> change;
  };
  const auto at = [](std::vector<TensorInfo>& tensors, const std::string& name) {
    return std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == name; });
  };
  const auto lacks = [&](const char* name) {
    return Case{std::string("m: missing tensors: ") + name, [=](auto& t) { t.erase(at(t, name)); }};
  };
  const auto has = [&](const char* name) {
    return Case{std::string("m: unexpected tensors: ") + name, [=](auto& t) { t.push_back({name, DType::f32, {1}}); }};
  };
  const Case cases[] = {
      lacks("model.embed_tokens.weight"),
      lacks("model.layers.1.self_attn.k_proj.weight"),
      lacks("model.norm.weight"),
      lacks("lm_head.weight"),
      has("model.lm_head.weight"),
      has("layers.0.mlp.up_proj.weight"),
      has("model.layers.2.input_layernorm.weight"),
      has("model.layers.0.self_attn.q_proj.bias"),
      has("model.layers.0.self_attn.q_norm.weight"),
      has("model.layers.0.block_sparse_moe.gate.weight"),
      has("model.layers.2.self_attn.rotary_emb.inv_freq"),
      has("model.layers.01.self_attn.rotary_emb.inv_freq"),
      has("model.layers.rotary_emb.inv_freq"),
      has("model.layers.99999999999999999999.self_attn.rotary_emb.inv_freq"),
      has("model.h.0.attn.bias"),
      {"m: unexpected tensors: evil\\x0aname",
       [](auto& t) {
         t.push_back({"evil\nname", DType::f32, {1}});
       }},
      {"m: wrong shapes: model.layers.0.self_attn.q_proj.weight (is [10, 24], has to be [24, 10])",
       [&](auto& t) {
         at(t, "model.layers.0.self_attn.q_proj.weight")->shape = {10, 24};
       }},
      {"m: wrong shapes: model.layers.1.self_attn.v_proj.weight (is [24, 10], has to be [12, 10])",
       [&](auto& t) {
         at(t, "model.layers.1.self_attn.v_proj.weight")->shape = {24, 10};
       }},
      {"m: wrong shapes: model.norm.weight (is [], has to be [10])",
       [&](auto& t) { at(t, "model.norm.weight")->shape = {}; }},
      {"m: types that cannot be read as weights: model.layers.0.mlp.down_proj.weight (I8)",
       [&](auto& t) { at(t, "model.layers.0.mlp.down_proj.weight")->other_type = "I8"; }},
  };
  for (const Case& c : cases) {
    auto tensors = listing(config, "model.");
    c.change(tensors);
    expect_error(check(config, tensors), Code::corrupt, c.error);
  }
  ModelConfig tied = config;
  tied.tied_head = true;
  auto tensors = listing(tied, "model.");
  tensors.push_back({"lm_head.weight", DType::f32, {1}});
  expect_error(check(tied, tensors), Code::corrupt, "m: wrong shapes: lm_head.weight (is [1], has to be [30, 10])");
  ModelConfig biased = config;
  biased.qkv_bias = true;
  expect_error(check(biased, listing(config)), Code::corrupt,
               "m: missing tensors: layers.0.self_attn.q_proj.bias, layers.0.self_attn.k_proj.bias, "
               "layers.0.self_attn.v_proj.bias, layers.1.self_attn.q_proj.bias and 2 more");
}

}  // namespace
}  // namespace stet::weights
