// Which tensors a GPT-2 has, and what a checkpoint may have in their place.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "support.hpp"
#include "weights/checkpoint.hpp"

namespace stet::weights {
namespace {

ModelConfig small_config() {
  ModelConfig config;
  config.family = "gpt2";
  config.layers = 2;
  config.heads = config.kv_heads = 2;
  config.head_dim = 4;
  config.width = 8;
  config.inner = 20;
  config.vocab = 30;
  config.context = 16;
  return config;
}

std::vector<TensorInfo> listing(const ModelConfig& config, const std::string& prefix = "") {
  std::vector<TensorInfo> tensors;
  for (const TensorSpec& spec : gpt2_tensors(config)) {
    tensors.push_back({(spec.name == "lm_head.weight" ? "" : prefix) + spec.name, DType::f32, spec.shape});
  }
  return tensors;
}

Result<std::string> check(const ModelConfig& config, std::vector<TensorInfo> tensors) {
  return check_gpt2(Listing(std::move(tensors)), config, "m");
}

std::int64_t parameters(const ModelConfig& config) {
  std::int64_t sum = 0;
  for (const TensorSpec& spec : gpt2_tensors(config)) sum += TensorInfo{spec.name, DType::f32, spec.shape}.elements();
  return sum;
}

// The published count of GPT-2 small (transformers' model.num_parameters() of openai-community/gpt2).
TEST(Gpt2Tensors, CountAsPublished) {
  EXPECT_EQ(parameters(make_random("random:gpt2")->config), 124'439'808);
  EXPECT_EQ(parameters(make_random("random:gpt2-medium")->config), 354'823'168);
}

// Per layer: 2 norms x 2C, qkv C x 3C + 3C, projection C x C + C, up C x 4C + 4C, down 4C x C + C.
TEST(Gpt2Tensors, CharIsThePublishedModelPlusBiases) {
  const ModelConfig config = make_random("random:char")->config;
  const std::int64_t C = 128, layers = 4;
  const std::int64_t published = 65 * C + 128 * C + layers * (4 * C + 4 * C * C + 8 * C * C) + 2 * C + 65 * C;
  EXPECT_EQ(published, 821'760);
  EXPECT_EQ(parameters(config), published + layers * (3 * C + C + 4 * C + C));
  EXPECT_EQ(parameters(config), 826'368);
}

TEST(CheckGpt2, FindsThePrefix) {
  ModelConfig config = small_config();
  for (const bool tied : {true, false}) {
    config.tied_head = tied;
    for (const std::string prefix : {"", "transformer."}) {
      const auto found = check(config, listing(config, prefix));
      ASSERT_TRUE(found) << found.error().message;
      EXPECT_EQ(*found, prefix);
    }
  }
}

TEST(CheckGpt2, IgnoresMaskBuffersAndATiedHead) {
  const ModelConfig config = small_config();
  for (const std::string prefix : {"", "transformer."}) {
    auto tensors = listing(config, prefix);
    tensors.push_back({prefix + "h.0.attn.bias", DType::f32, {1, 1, 16, 16}, "U8"});
    tensors.push_back({prefix + "h.1.attn.bias", DType::f32, {1, 1, 16, 16}});
    tensors.push_back({prefix + "h.1.attn.masked_bias", DType::f32, {}, "BOOL"});
    tensors.push_back({"lm_head.weight", DType::f16, {30, 8}});
    const auto found = check(config, tensors);
    EXPECT_TRUE(found) << found.error().message;
  }
}

TEST(CheckGpt2, NamesEachFault) {
  const ModelConfig config = small_config();
  struct Case {
    std::string error;
    std::function<void(std::vector<TensorInfo>&)> change;
  };
  const auto at = [](std::vector<TensorInfo>& tensors, const std::string& name) {
    return std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == name; });
  };
  const auto add = [](const char* name) {
    return [=](std::vector<TensorInfo>& t) { t.push_back({name, DType::f32, {1}}); };
  };
  const Case cases[] = {
      {"m: missing tensors: h.1.mlp.c_fc.bias", [&](auto& t) { t.erase(at(t, "h.1.mlp.c_fc.bias")); }},
      {"m: missing tensors: wte.weight", [&](auto& t) { t.erase(at(t, "wte.weight")); }},
      {"m: wrong shapes: h.0.attn.c_attn.weight (is [24, 8], has to be [8, 24])",
       [&](auto& t) {
         at(t, "h.0.attn.c_attn.weight")->shape = {24, 8};
       }},
      {"m: wrong shapes: ln_f.bias (is [], has to be [8])", [&](auto& t) { at(t, "ln_f.bias")->shape = {}; }},
      {"m: types that cannot be read as weights: wpe.weight (I8)",
       [&](auto& t) { at(t, "wpe.weight")->other_type = "I8"; }},
      {"m: wrong shapes: lm_head.weight (is [1], has to be [30, 8])", add("lm_head.weight")},
      {"m: unexpected tensors: score.weight", add("score.weight")},
      {"m: unexpected tensors: h.2.ln_1.weight", add("h.2.ln_1.weight")},
      {"m: unexpected tensors: h.2.attn.bias", add("h.2.attn.bias")},
      {"m: unexpected tensors: h.00.attn.bias", add("h.00.attn.bias")},
      {"m: unexpected tensors: h..attn.bias", add("h..attn.bias")},
      {"m: unexpected tensors: h.99999999999999999999.attn.bias", add("h.99999999999999999999.attn.bias")},
      {"m: unexpected tensors: h.1.crossattention.bias", add("h.1.crossattention.bias")},
      {"m: unexpected tensors: evil\\x0aname", add("evil\nname")},
  };
  for (const Case& c : cases) {
    auto tensors = listing(config);
    c.change(tensors);
    expect_error(check(config, tensors), Code::corrupt, c.error);
  }
}

TEST(CheckGpt2, AnUntiedHeadIsNeeded) {
  ModelConfig config = small_config();
  const auto without = listing(config, "transformer.");
  config.tied_head = false;
  expect_error(check(config, without), Code::corrupt, "m: missing tensors: lm_head.weight");
}

TEST(CheckGpt2, MixedPrefixesAreUnexpectedByName) {
  const ModelConfig config = small_config();
  auto tensors = listing(config, "transformer.");
  tensors.push_back({"wte.weight", DType::f32, {30, 8}});
  expect_error(check(config, tensors), Code::corrupt, "m: unexpected tensors: wte.weight");
  tensors.pop_back();
  tensors.push_back({"transformer.lm_head.weight", DType::f32, {30, 8}});
  expect_error(check(config, tensors), Code::corrupt, "m: unexpected tensors: transformer.lm_head.weight");
}

TEST(CheckGpt2, ShowsAFewAndCountsTheRest) {
  const ModelConfig config = small_config();
  expect_error(check(config, {}), Code::corrupt,
               "m: missing tensors: wte.weight, wpe.weight, h.0.ln_1.weight, h.0.ln_1.bias and 24 more");
  ModelConfig wider = config;
  wider.width = 10;
  const auto both = check(wider, [&] {
    auto tensors = listing(config);
    tensors.push_back({"x", DType::f32, {}});
    tensors.erase(tensors.begin());
    return tensors;
  }());
  expect_error(both, Code::corrupt,
               "m: missing tensors: wte.weight; wrong shapes: wpe.weight (is [16, 8], has to be [16, 10]), ");
  expect_error(both, Code::corrupt, " more; unexpected tensors: x");
}

}  // namespace
}  // namespace stet::weights
