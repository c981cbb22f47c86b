#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "support.hpp"
#include "weights/checkpoint.hpp"

namespace stet::weights {
namespace {

std::vector<float> values(const std::string& spec, const std::string& name, std::int64_t begin, std::size_t count) {
  const auto model = make_random(spec);
  EXPECT_TRUE(model) << model.error().message;
  std::vector<float> out(count);
  const auto ok = model->source->read(*model->source->find(name), begin, std::span(out));
  EXPECT_TRUE(ok) << ok.error().message;
  return out;
}

// From an implementation in Python: FNV-1a of the name, splitmix64 (whose published outputs for seed 1234567 it
// reproduces), the sum of the four 16-bit quarters less 131070, times the deviation and sqrt(3 / (2^32 - 1)), plus the
// mean, as float.
TEST(Random, ValuesAreThoseOfTheirDefinition) {
  EXPECT_EQ(values("random:gpt2", "h.0.ln_1.weight", 100, 4),
            (std::vector<float>{0x1.f38ba4p-1F, 0x1.d9f02cp-1F, 0x1.f5a8bcp-1F, 0x1.d2759p-1F}));
  EXPECT_EQ(values("random:gpt2", "h.11.attn.c_attn.weight", 100, 4),
            (std::vector<float>{0x1.de90cep-7F, -0x1.00c2eap-4F, -0x1.1004c2p-4F, -0x1.60dee6p-4F}));
  EXPECT_EQ(values("random:gpt2", "h.0.mlp.c_proj.weight", 5, 4),
            (std::vector<float>{-0x1.15caf6p-5F, 0x1.c5dba2p-7F, -0x1.04392cp-9F, 0x1.f7a318p-7F}));
  EXPECT_EQ(values("random:gpt2,seed=7", "wte.weight", 38'597'375, 1), (std::vector<float>{0x1.34d9c4p-6F}));
  EXPECT_EQ(values("random:char,seed=18446744073709551615", "lm_head.weight", 0, 4),
            (std::vector<float>{0x1.68203ep-5F, 0x1.093be6p-4F, -0x1.0296c6p-4F, 0x1.133dc6p-4F}));
}

TEST(Random, AnyPieceGivesTheSameAndDoublesAreThoseFloats) {
  const auto model = make_random("random:char");
  ASSERT_TRUE(model);
  for (const TensorInfo& tensor : model->source->tensors()) {
    std::vector<float> whole(static_cast<std::size_t>(tensor.elements())), pieces(whole.size());
    std::vector<double> f64(whole.size());
    ASSERT_TRUE(model->source->read(tensor, 0, std::span(whole)));
    ASSERT_TRUE(model->source->read(tensor, 0, std::span(f64)));
    std::mt19937 sizes(1);
    for (std::size_t end = pieces.size(); end > 0;) {  // backwards, in odd sizes
      const std::size_t n = std::min<std::size_t>(end, sizes() % 700);
      end -= n;
      ASSERT_TRUE(model->source->read(tensor, static_cast<std::int64_t>(end), std::span(pieces).subspan(end, n)));
    }
    EXPECT_EQ(pieces, whole) << tensor.name;
    EXPECT_TRUE(std::equal(whole.begin(), whole.end(), f64.begin())) << tensor.name;
  }
}

TEST(Random, ValuesHaveTheStatedMeanAndDeviation) {
  const auto model = make_random("random:char");
  ASSERT_TRUE(model);
  for (const TensorSpec& spec : gpt2_tensors(model->config)) {
    const TensorInfo* tensor = model->source->find(spec.name);
    ASSERT_NE(tensor, nullptr);
    const auto n = static_cast<std::size_t>(tensor->elements());
    std::vector<double> x(n);
    ASSERT_TRUE(model->source->read(*tensor, 0, std::span(x)));
    double sum = 0, squares = 0, lags = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const double z = (x[i] - spec.random_mean) / spec.random_std;
      ASSERT_LT(std::abs(z), 3.47);  // four uniforms reach sqrt(12)
      sum += z;
      squares += z * z;
      if (i > 0) lags += z * (x[i - 1] - spec.random_mean) / spec.random_std;
    }
    // Five standard errors: of a mean 1/sqrt(n); of a square sqrt(0.7 + 1)/sqrt(n) (kurtosis 2.7); of a product
    // 1/sqrt(n).
    const double bound = 5 / std::sqrt(static_cast<double>(n));
    EXPECT_LT(std::abs(sum / static_cast<double>(n)), bound) << spec.name;
    EXPECT_LT(std::abs(squares / static_cast<double>(n) - 1), 1.31 * bound) << spec.name;
    EXPECT_LT(std::abs(lags / static_cast<double>(n)), bound) << spec.name;
  }
}

TEST(Random, SeedAndNameDecideTheValuesAndSizesDoNot) {
  const auto base = values("random:char", "wpe.weight", 0, 1000);
  EXPECT_EQ(values("random:char,ctx=16384", "wpe.weight", 0, 1000), base);
  EXPECT_EQ(values("random:char,seed=0", "wpe.weight", 0, 1000), base);
  EXPECT_NE(values("random:char,seed=1", "wpe.weight", 0, 1000), base);
  EXPECT_NE(values("random:char", "h.0.ln_1.bias", 0, 128), values("random:char", "h.1.ln_1.bias", 0, 128));
}

TEST(Random, PresetsAndOverrides) {
  const auto config = [](const char* spec) {
    const auto model = make_random(spec);
    EXPECT_TRUE(model) << model.error().message;
    if (!model) return ModelConfig{};
    EXPECT_TRUE(check_gpt2(*model->source, model->config, spec));
    return model->config;
  };
  const ModelConfig gpt2 = config("random:gpt2");
  EXPECT_EQ(gpt2.layers, 12);
  EXPECT_EQ(gpt2.heads, 12);
  EXPECT_EQ(gpt2.kv_heads, 12);
  EXPECT_EQ(gpt2.head_dim, 64);
  EXPECT_EQ(gpt2.width, 768);
  EXPECT_EQ(gpt2.inner, 3072);
  EXPECT_EQ(gpt2.vocab, 50257);
  EXPECT_EQ(gpt2.context, 1024);
  EXPECT_TRUE(gpt2.tied_head);
  EXPECT_EQ(gpt2.eos, 50256);
  EXPECT_EQ(config("random:gpt2-medium").head_dim, 64);
  EXPECT_EQ(config("random:gpt2-medium").layers, 24);
  const ModelConfig small = config("random:gpt2,ctx=8,layers=1,heads=2,width=6,vocab=11,seed=3");
  EXPECT_EQ(small.context, 8);
  EXPECT_EQ(small.layers, 1);
  EXPECT_EQ(small.head_dim, 3);
  EXPECT_EQ(small.inner, 24);
  EXPECT_EQ(small.vocab, 11);
  EXPECT_EQ(small.bos, std::nullopt);
  EXPECT_EQ(config("random:char,inner=7,width=8").inner, 7);
  EXPECT_EQ(config("random:char,ctx=16384").context, 16384);
  EXPECT_FALSE(config("random:char").tied_head);
  EXPECT_EQ(config("random:char,vocab=9,vocab=10").vocab, 10);
}

TEST(Random, LlamasAndTheirOverrides) {
  const auto config = [](const std::string& spec) {
    const auto model = make_random(spec);
    EXPECT_TRUE(model) << model.error().message;
    if (!model) return ModelConfig{};
    EXPECT_TRUE(check_llama(*model->source, model->config, spec));
    return model->config;
  };
  const ModelConfig tiny = config("random:llama-tiny");
  EXPECT_EQ(tiny.family, "llama");
  EXPECT_EQ(tiny.layers, 2);
  EXPECT_EQ(tiny.heads, 8);
  EXPECT_EQ(tiny.kv_heads, 4);
  EXPECT_EQ(tiny.head_dim, 8);
  EXPECT_EQ(tiny.width, 64);
  EXPECT_EQ(tiny.inner, 172);
  EXPECT_EQ(tiny.vocab, 512);
  EXPECT_EQ(tiny.context, 512);
  EXPECT_EQ(tiny.activation, Activation::silu);
  EXPECT_FALSE(tiny.tied_head);
  EXPECT_TRUE(tiny.windows.empty());
  const ModelConfig big = config("random:llama-1b");
  EXPECT_EQ(big.head_dim, 64);
  EXPECT_TRUE(big.tied_head);
  EXPECT_EQ(big.rope, (Rope{500000, Rope::Scaling::llama3, 32, 1, 4, 8192}));
  EXPECT_EQ(config("random:llama-tiny,kv_heads=1").kv_heads, 1);
  EXPECT_EQ(config("random:llama-tiny,kv_heads=8,layers=1").kv_heads, 8);
  EXPECT_EQ(config("random:llama-tiny,heads=4").head_dim, 16);
  EXPECT_EQ(config("random:llama-tiny,heads=4").kv_heads, 4);
  EXPECT_EQ(config("random:llama-tiny,width=128").head_dim, 16);
  EXPECT_EQ(config("random:llama-tiny,width=128").inner, 172);
  EXPECT_EQ(config("random:llama-1b,width=64,vocab=9").inner, 256);
  EXPECT_EQ(config("random:llama-1b,width=64,vocab=9").eos, std::nullopt);
  EXPECT_EQ(config("random:llama-tiny,window=7,layers=3").windows, (std::vector<Pos>{7, 7, 7}));
  EXPECT_EQ(config("random:llama-tiny,window=100000").windows, (std::vector<Pos>{100000, 100000}));
}

TEST(Random, LayersThatAreOverriddenTakeTheirWindowsAlong) {
  const TempFolder folder;
  const auto path = folder.write("c.json", R"({"model_type":"qwen2","num_hidden_layers":3,"num_attention_heads":2,
    "num_key_value_heads":2,"hidden_size":8,"head_dim":6,"intermediate_size":6,"vocab_size":7,
    "max_position_embeddings":5,"use_sliding_window":true,"sliding_window":4,"max_window_layers":2})");
  const auto config = [&](const std::string& overrides) {
    const auto model = make_random("random:" + path.string() + overrides);
    EXPECT_TRUE(model) << model.error().message;
    return model ? model->config : ModelConfig{};
  };
  EXPECT_EQ(config("").windows, (std::vector<Pos>{0, 0, 4}));
  EXPECT_EQ(config(",layers=5").windows, (std::vector<Pos>{0, 0, 4, 4, 4}));
  EXPECT_TRUE(config(",layers=2").windows.empty());
  EXPECT_EQ(config(",layers=1,window=3").windows, (std::vector<Pos>{3}));
  EXPECT_EQ(config(",width=10").head_dim, 6);
  EXPECT_EQ(config(",heads=3").head_dim, 6);
  EXPECT_EQ(config(",heads=3").kv_heads, 3);
  EXPECT_TRUE(config(",heads=3").qkv_bias);
}

TEST(Random, TakesAnyConfigFile) {
  const TempFolder folder;
  const auto path =
      folder.write("c.json", R"({"model_type":"gpt2","n_layer":1,"n_head":1,"n_embd":4,"n_inner":6,"n_positions":5,
    "vocab_size":7,"tie_word_embeddings":false,"activation_function":"relu"})");
  const auto model = make_random("random:" + path.string() + ",width=8,seed=5");
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(model->config.inner, 6);  // as the file says
  EXPECT_EQ(model->config.head_dim, 8);
  EXPECT_EQ(model->config.activation, Activation::relu);
  EXPECT_TRUE(check_gpt2(*model->source, model->config, "m"));
  folder.write("c.json", "{}");
  expect_error(make_random("random:" + path.string()), Code::corrupt, path.string() + ": model_type is missing");
}

TEST(Random, RefusesWhatItDoesNotKnow) {
  EXPECT_TRUE(is_random("random:"));
  EXPECT_FALSE(is_random("models/random:gpt2"));
  EXPECT_FALSE(is_random("random"));
  const auto refused = [](const std::string& spec, const std::string& error, Code code = Code::invalid_argument) {
    SCOPED_TRACE(spec);
    expect_error(make_random(spec), code, error);
  };
  refused("gpt2", "gpt2: does not begin with random:");
  refused("random:gpt3",
          "random:gpt3: not gpt2, gpt2-medium, char, llama-tiny or llama-1b, nor a config file: gpt3: No such file or "
          "directory",
          Code::not_found);
  refused("random:", "random:: not gpt2", Code::not_found);
  refused("random:char,", "random:char,: \"\" is not KEY=VALUE");
  refused("random:char,ctx", "\"ctx\" is not KEY=VALUE");
  refused("random:char,context=5", "unknown key \"context\" (ctx, layers, heads, kv_heads, width, inner, vocab, ");
  for (const char* bad : {"", "0", "-1", "1.5", "x", "1x", " 1", "+1", "2147483648", "99999999999999999999999"}) {
    refused(std::string("random:char,ctx=") + bad,
            std::string("ctx \"") + bad + "\" is not an integer from 1 to 2147483647");
  }
  refused("random:char,seed=-1", "seed \"-1\" is not an integer from 0 to 2^64 - 1");
  refused("random:char,seed=18446744073709551616", "seed \"18446744073709551616\" is not");
  refused("random:char,heads=3", "random:char,heads=3: width 128 is not a multiple of 3 heads");
  refused("random:llama-tiny,heads=2", "random:llama-tiny,heads=2: 2 heads are not a multiple of 4 KV heads");
  refused("random:llama-tiny,heads=3", "random:llama-tiny,heads=3: width 64 is not a multiple of 3 heads");
  refused("random:llama-tiny,width=8", "random:llama-tiny,width=8: head size 1 is odd");
  refused("random:llama-tiny,kv_heads=3", "8 heads are not a multiple of 3 KV heads");
  refused("random:llama-tiny,kv_heads=0", "kv_heads \"0\" is not an integer from 1 to 2147483647");
  refused("random:llama-tiny,window=0", "window \"0\" is not an integer from 1 to 2147483647");
  refused("random:llama-tiny,window=2147483648", "window \"2147483648\" is not an integer");
  refused("random:llama-tiny,layers=2147483647,window=1", "2147483647 layers are more than 65536");
  refused("random:llama-tiny,layers=65536,width=500000000,inner=1000000000", "parameters are more than 2^60");
  refused("random:llama-tiny,kv_heads=8,width=2000000000", "are together more than 2147483647");
  refused("random:char,kv_heads=2", "random:char,kv_heads=2: kv_heads is for Llama's families, not for gpt2");
  refused("random:gpt2,window=2", "random:gpt2,window=2: window is for Llama's families, not for gpt2");
  refused("random:char,width=536870912", "width 536870912 is too large");
  refused("random:char,layers=100000", "100000 layers are more than 65536");
  refused("random:char,layers=65536,width=400000000", "parameters are more than 2^60");
}

TEST(Random, RefusesReadsThatCannotBe) {
  const auto model = make_random("random:char");
  ASSERT_TRUE(model);
  std::vector<float> out(2);
  const TensorInfo* tensor = model->source->find("ln_f.bias");
  expect_error(model->source->read(*tensor, 127, std::span(out)), Code::invalid_argument,
               "tensor ln_f.bias: 2 elements from 127");
  expect_error(model->source->read(TensorInfo{"x", DType::f32, {2}}, 0, std::span(out)), Code::not_found,
               "there is no tensor x");
}

}  // namespace
}  // namespace stet::weights
