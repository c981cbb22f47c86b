// The config.json of Llama, Mistral and Qwen2: what each key means, and what its absence does.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>

#include "support.hpp"
#include "weights/checkpoint.hpp"

namespace stet::weights {
namespace {

using Changes = std::map<std::string, std::string>;

/// A small valid config with some members replaced; an empty text removes one.
std::string config_text(const std::string& family, const Changes& changes) {
  Changes members = {{"model_type", '"' + family + '"'}, {"num_hidden_layers", "3"},
                     {"num_attention_heads", "32"},      {"hidden_size", "128"},
                     {"intermediate_size", "200"},       {"vocab_size", "50"},
                     {"max_position_embeddings", "64"}};
  for (const auto& [key, value] : changes) members[key] = value;
  std::string text;
  for (const auto& [key, value] : members) {
    if (!value.empty()) text += (text.empty() ? "{\"" : ",\"") + key + "\":" + value;
  }
  return text + "}";
}

ModelConfig parsed_text(const std::string& text) {
  const auto config = parse_config(text, "c");
  EXPECT_TRUE(config) << text << '\n' << config.error().message;
  return config.value_or(ModelConfig{});
}

ModelConfig parsed(const std::string& family, const Changes& changes = {}) {
  return parsed_text(config_text(family, changes));
}

void refused(const std::string& family, const Changes& changes, Code code, const std::string& error) {
  SCOPED_TRACE(config_text(family, changes));
  expect_error(parse_config(config_text(family, changes), "c"), code, "c: " + error);
}

const char* const kFamilies[] = {"llama", "mistral", "qwen2"};

// The defaults of LlamaConfig, MistralConfig and Qwen2Config in transformers.
TEST(LlamaConfig, MissingKeysMeanWhatTheyMeanToHuggingFace) {
  const ModelConfig llama = parsed("llama");
  EXPECT_EQ(llama.family, "llama");
  EXPECT_EQ(llama.layers, 3);
  EXPECT_EQ(llama.heads, 32);
  EXPECT_EQ(llama.kv_heads, 32);
  EXPECT_EQ(llama.head_dim, 4);
  EXPECT_EQ(llama.width, 128);
  EXPECT_EQ(llama.inner, 200);
  EXPECT_EQ(llama.vocab, 50);
  EXPECT_EQ(llama.context, 64);
  EXPECT_EQ(llama.activation, Activation::silu);
  EXPECT_EQ(llama.norm_epsilon, 1e-6);
  EXPECT_TRUE(llama.scale_attention);
  EXPECT_FALSE(llama.scale_attention_by_layer);
  EXPECT_FALSE(llama.tied_head);
  EXPECT_EQ(llama.bos, std::nullopt);
  EXPECT_EQ(llama.eos, std::nullopt);
  EXPECT_EQ(llama.rope, Rope{});
  EXPECT_FALSE(llama.qkv_bias);
  EXPECT_FALSE(llama.out_bias);
  EXPECT_FALSE(llama.mlp_bias);
  EXPECT_TRUE(llama.windows.empty());

  const ModelConfig mistral = parsed("mistral");
  EXPECT_EQ(mistral.family, "mistral");
  EXPECT_EQ(mistral.kv_heads, 8);
  EXPECT_EQ(mistral.windows, (std::vector<Pos>{4096, 4096, 4096}));
  EXPECT_FALSE(mistral.qkv_bias);

  const ModelConfig qwen2 = parsed("qwen2");
  EXPECT_EQ(qwen2.family, "qwen2");
  EXPECT_EQ(qwen2.kv_heads, 32);
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.out_bias);
  EXPECT_FALSE(qwen2.mlp_bias);
  EXPECT_TRUE(qwen2.windows.empty());

  for (const char* family : kFamilies) EXPECT_EQ(parsed(family, {{"num_key_value_heads", "null"}}).kv_heads, 32);
}

TEST(LlamaConfig, TheFamilyMayBeTheClass) {
  const auto family = [](const char* name) {
    return parsed("", {{"model_type", ""}, {"architectures", std::string("[\"") + name + "\"]"}}).family;
  };
  EXPECT_EQ(family("LlamaForCausalLM"), "llama");
  EXPECT_EQ(family("MistralForCausalLM"), "mistral");
  EXPECT_EQ(family("Qwen2ForCausalLM"), "qwen2");
  for (const char* other : {"gemma2", "qwen2_moe", "qwen3", "mixtral", "llama4", "Llama", "phi3"}) {
    refused(other, {}, Code::unsupported, std::string("model_type \"") + other + "\" is not supported");
  }
}

TEST(LlamaConfig, EveryVariantIsRead) {
  const ModelConfig config = parsed("llama", {{"num_key_value_heads", "4"},
                                              {"head_dim", "6"},
                                              {"rms_norm_eps", "0.001"},
                                              {"hidden_act", "\"gelu_pytorch_tanh\""},
                                              {"attention_bias", "true"},
                                              {"mlp_bias", "true"},
                                              {"tie_word_embeddings", "true"},
                                              {"bos_token_id", "0"},
                                              {"eos_token_id", "[49]"},
                                              {"rope_theta", "500000"},
                                              {"pretraining_tp", "1"},
                                              {"partial_rotary_factor", "1.0"},
                                              {"quantization_config", "null"},
                                              {"some_new_key", "[{}]"}});
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_EQ(config.head_dim, 6);
  EXPECT_EQ(config.norm_epsilon, 1e-3);
  EXPECT_EQ(config.activation, Activation::gelu_tanh);
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_TRUE(config.out_bias);
  EXPECT_TRUE(config.mlp_bias);
  EXPECT_TRUE(config.tied_head);
  EXPECT_EQ(config.bos, 0);
  EXPECT_EQ(config.eos, 49);
  EXPECT_EQ(config.rope.theta, 500000);
  EXPECT_EQ(parsed("llama", {{"head_dim", "null"}}).head_dim, 4);
  EXPECT_EQ(parsed("llama", {{"hidden_size", "130"}, {"head_dim", "2"}}).head_dim, 2);
  EXPECT_EQ(parsed("llama", {{"hidden_act", "\"swish\""}}).activation, Activation::silu);
  EXPECT_EQ(parsed("llama", {{"hidden_act", "\"gelu\""}}).activation, Activation::gelu_erf);
  EXPECT_EQ(parsed("llama", {{"hidden_act", "\"relu\""}}).activation, Activation::relu);
  // Keys that the classes of Mistral and Qwen2 do not read.
  for (const char* family : {"mistral", "qwen2"}) {
    const ModelConfig other = parsed(family, {{"attention_bias", "true"}, {"mlp_bias", "true"}});
    EXPECT_EQ(other.qkv_bias, other.family == "qwen2");
    EXPECT_FALSE(other.out_bias);
    EXPECT_FALSE(other.mlp_bias);
  }
}

TEST(LlamaConfig, RotaryScalingInEverySpelling) {
  const Rope linear{10000, Rope::Scaling::linear, 4};
  const Rope llama3{500000, Rope::Scaling::llama3, 8, 1, 4, 8192};
  const std::string numbers =
      R"("factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192)";
  for (const char* family : kFamilies) {
    const auto rope = [&](const Changes& changes) { return parsed(family, changes).rope; };
    EXPECT_EQ(rope({{"rope_scaling", "null"}}), Rope{});
    EXPECT_EQ(rope({{"rope_scaling", R"({"type":"default"})"}}), Rope{});
    EXPECT_EQ(rope({{"rope_scaling", R"({"rope_type":"default"})"}}), Rope{});
    EXPECT_EQ(rope({{"rope_scaling", R"({"type":"linear","factor":4})"}}), linear);
    EXPECT_EQ(rope({{"rope_scaling", R"({"rope_type":"linear","factor":4.0})"}}), linear);
    EXPECT_EQ(rope({{"rope_scaling", R"({"rope_type":"linear","type":"linear","factor":4})"}}), linear);
    EXPECT_EQ(rope({{"rope_scaling", R"({"rope_type":"llama3",)" + numbers + "}"}, {"rope_theta", "500000.0"}}),
              llama3);
    EXPECT_EQ(rope({{"rope_parameters", R"({"rope_type":"llama3","rope_theta":500000.0,)" + numbers + "}"}}), llama3);
    EXPECT_EQ(rope({{"rope_parameters", R"({"rope_type":"llama3",)" + numbers + "}"}, {"rope_theta", "500000.0"}}),
              llama3);
    EXPECT_EQ(rope({{"rope_parameters", R"({"rope_type":"default","rope_theta":1000000.0})"}}).theta, 1000000);
    EXPECT_EQ(rope({{"rope_parameters", R"({"rope_theta":20000,"partial_rotary_factor":1.0})"}}).theta, 20000);
    EXPECT_EQ(rope({{"rope_parameters", R"({"rope_theta":20000})"}, {"rope_theta", "2e4"}}).theta, 20000);
    EXPECT_EQ(rope({{"rope_parameters", "{}"}}), Rope{});
    EXPECT_EQ(rope({{"rope_parameters", "null"}, {"rope_scaling", R"({"type":"linear","factor":4})"}}), linear);
  }
}

TEST(LlamaConfig, RefusesOtherRotaryPositions) {
  for (const char* type : {"dynamic", "yarn", "longrope", "su", "mrope", "Linear", "", "llama\\n3"}) {
    const std::string shown = std::string(type) == "llama\\n3" ? "llama\\x0a3" : type;
    const std::string spelled = std::string("\"") + type + "\"";
    for (const char* key : {"type", "rope_type"}) {
      refused("llama", {{"rope_scaling", std::string("{\"") + key + "\":" + spelled + ",\"factor\":2}"}},
              Code::unsupported,
              "rope_scaling: rope_type \"" + shown + "\" is not supported; default, linear and llama3 are");
    }
    refused("qwen2", {{"rope_parameters", "{\"rope_type\":" + spelled + "}"}}, Code::unsupported,
            "rope_parameters: rope_type \"" + shown + "\" is not supported");
  }
  const auto wrong = [](const std::string& object, const std::string& error, Code code = Code::corrupt) {
    refused("llama", {{"rope_scaling", object}}, code, error);
  };
  wrong("{}", "rope_scaling: rope_type is missing");
  wrong(R"({"factor":2})", "rope_scaling: rope_type is missing");
  wrong("2", "rope_scaling is 2, not null or an object");
  wrong("[]", "rope_scaling is a list, not null or an object");
  wrong(R"({"type":7})", "rope_scaling: type is 7, not a string");
  wrong(R"({"type":"linear","rope_type":"default"})", "rope_scaling: type is \"linear\", but rope_type is \"default\"");
  wrong(R"({"type":"linear"})", "rope_scaling: factor is missing");
  for (const char* bad : {"0", "-1", "0.5", "null", "\"2\"", "true", "[2]"}) {
    wrong(std::string(R"({"type":"linear","factor":)") + bad + "}", std::string("rope_scaling: factor is ") +
                                                                        (std::string(bad) == "[2]" ? "a list" : bad) +
                                                                        ", not a number from 1");
  }
  wrong(R"({"type":"linear","factor":1e999})", "");
  const auto llama3 = [&](const std::string& key, const std::string& value, const std::string& error) {
    Changes members = {{"rope_type", "\"llama3\""},
                       {"factor", "8"},
                       {"low_freq_factor", "1"},
                       {"high_freq_factor", "4"},
                       {"original_max_position_embeddings", "8192"}};
    members[key] = value;
    std::string text;
    for (const auto& [name, number] : members) {
      if (!number.empty()) text += (text.empty() ? "{\"" : ",\"") + name + "\":" + number;
    }
    wrong(text + "}", error);
  };
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    llama3(key, "", std::string("rope_scaling: ") + key + " is missing");
    for (const char* bad : {"-1", "null", "\"4\""}) llama3(key, bad, std::string("rope_scaling: ") + key + " is ");
  }
  llama3("original_max_position_embeddings", "0", "rope_scaling: original_max_position_embeddings is 0");
  llama3("original_max_position_embeddings", "8192.5", "rope_scaling: original_max_position_embeddings is 8192.5");
  llama3("low_freq_factor", "4", "rotary low_freq_factor 4 is not less than high_freq_factor 4");
  llama3("high_freq_factor", "0.5", "rotary low_freq_factor 1 is not less than high_freq_factor 0.5");
}

TEST(LlamaConfig, RefusesContradictoryRotaryKeys) {
  refused("llama", {{"rope_theta", "1"}, {"rope_parameters", R"({"rope_theta":2})"}}, Code::corrupt,
          "rope_parameters: rope_theta is 2, but 1 outside");
  refused("llama", {{"rope_scaling", R"({"type":"default"})"}, {"rope_parameters", R"({"rope_theta":2})"}},
          Code::corrupt, "rope_scaling and rope_parameters are both there and differ");
  refused("llama", {{"rope_parameters", R"({"full_attention":{"rope_type":"default"}})"}}, Code::unsupported,
          "rope_parameters: full_attention an object is not supported");
  refused("llama", {{"partial_rotary_factor", "0.5"}}, Code::unsupported,
          "partial_rotary_factor 0.5 is not supported; 1 is");
  refused("llama", {{"rope_parameters", R"({"partial_rotary_factor":0.25})"}}, Code::unsupported,
          "rope_parameters: partial_rotary_factor 0.25 is not supported; 1 is");
  for (const char* bad : {"0", "-10000", "0.999", "null", "\"10000\"", "false"}) {
    refused("llama", {{"rope_theta", bad}}, Code::corrupt,
            std::string("rope_theta is ") + bad + ", not a number from 1");
    refused("llama", {{"rope_parameters", std::string("{\"rope_theta\":") + bad + "}"}}, Code::corrupt,
            std::string("rope_parameters: rope_theta is ") + bad + ", not a number from 1");
  }
}

TEST(LlamaConfig, WindowsOfMistral) {
  EXPECT_TRUE(parsed("mistral", {{"sliding_window", "null"}}).windows.empty());
  EXPECT_EQ(parsed("mistral", {{"sliding_window", "1"}}).windows, (std::vector<Pos>{1, 1, 1}));
  EXPECT_EQ(parsed("mistral", {{"sliding_window", "2147483647"}}).windows.front(), 2147483647);
  const std::string sliding = R"(["sliding_attention","sliding_attention","sliding_attention"])";
  EXPECT_EQ(parsed("mistral", {{"sliding_window", "9"}, {"layer_types", sliding}}).windows,
            (std::vector<Pos>{9, 9, 9}));
  for (const std::string bad : {"0", "-1", "1.5", "\"4096\"", "true", "2147483648"}) {
    refused("mistral", {{"sliding_window", bad}}, Code::corrupt,
            "sliding_window is " + bad + ", not an integer from 1");
  }
  refused("mistral", {{"layer_types", R"(["sliding_attention","full_attention","full_attention"])"}}, Code::unsupported,
          "layer_types of full_attention beside a sliding_window is not supported in a mistral");
  refused("mistral", {{"sliding_window", "null"}, {"layer_types", sliding}}, Code::corrupt,
          "layer_types has sliding_attention in layer 0, but there is no window");
}

TEST(LlamaConfig, WindowsOfQwen2) {
  const auto windows = [](Changes changes) {
    changes.insert({"use_sliding_window", "true"});
    return parsed("qwen2", changes).windows;
  };
  EXPECT_TRUE(windows({}).empty());  // the first 28 layers see everything
  EXPECT_TRUE(windows({{"max_window_layers", "3"}, {"sliding_window", "9"}}).empty());
  EXPECT_TRUE(windows({{"max_window_layers", "18446744073709551615"}, {"sliding_window", "9"}}).empty());
  EXPECT_EQ(windows({{"max_window_layers", "2"}, {"sliding_window", "9"}}), (std::vector<Pos>{0, 0, 9}));
  EXPECT_EQ(windows({{"max_window_layers", "0"}, {"sliding_window", "9"}}), (std::vector<Pos>{9, 9, 9}));
  EXPECT_EQ(windows({{"max_window_layers", "2"}}), (std::vector<Pos>{0, 0, 4096}));
  EXPECT_EQ(windows({{"num_hidden_layers", "30"}, {"sliding_window", "9"}})[27], 0);
  EXPECT_EQ(windows({{"num_hidden_layers", "30"}, {"sliding_window", "9"}})[28], 9);
  EXPECT_TRUE(windows({{"max_window_layers", "0"}, {"sliding_window", "null"}}).empty());
  EXPECT_TRUE(windows({{"max_window_layers", "0"}, {"use_sliding_window", "false"}}).empty());
  const std::string mixed = R"(["full_attention","sliding_attention","full_attention"])";
  const std::string full = R"(["full_attention","full_attention","full_attention"])";
  EXPECT_EQ(windows({{"max_window_layers", "0"}, {"sliding_window", "9"}, {"layer_types", mixed}}),
            (std::vector<Pos>{0, 9, 0}));
  EXPECT_TRUE(windows({{"max_window_layers", "0"}, {"sliding_window", "9"}, {"layer_types", full}}).empty());
  EXPECT_EQ(windows({{"max_window_layers", "2"}, {"layer_types", "null"}}).back(), 4096);
  const auto wrong = [](Changes changes, Code code, const std::string& error) {
    changes.insert({"use_sliding_window", "true"});
    refused("qwen2", changes, code, error);
  };
  wrong({{"sliding_window", "0"}}, Code::corrupt, "sliding_window is 0, not an integer from 1");
  wrong({{"max_window_layers", "-1"}}, Code::corrupt, "max_window_layers is -1, not an integer from 0");
  wrong({{"max_window_layers", "1.0"}}, Code::corrupt, "max_window_layers is 1.0, not an integer from 0");
  wrong({{"use_sliding_window", "1"}}, Code::corrupt, "use_sliding_window is 1, not true or false");
  wrong({{"use_sliding_window", "false"}, {"layer_types", mixed}}, Code::corrupt,
        "layer_types has sliding_attention in layer 1, but there is no window (sliding_window, use_sliding_window)");
  wrong({{"layer_types", "[]"}}, Code::corrupt, "layer_types is a list, not a list of 3 layers' types");
  wrong({{"layer_types", R"("full_attention")"}}, Code::corrupt, "layer_types is \"full_attention\", not a list of 3");
  wrong({{"layer_types", R"(["full_attention","chunked_attention","full_attention"])"}}, Code::unsupported,
        "layer_types \"chunked_attention\" is not supported; \"full_attention\" and \"sliding_attention\" are");
  wrong({{"layer_types", R"(["full_attention",1,"full_attention"])"}}, Code::unsupported, "layer_types 1 is not");
}

TEST(LlamaConfig, LlamaHasNoWindows) {
  EXPECT_TRUE(parsed("llama", {{"sliding_window", "9"}, {"use_sliding_window", "true"}}).windows.empty());
  EXPECT_TRUE(
      parsed("llama", {{"layer_types", R"(["full_attention","full_attention","full_attention"])"}}).windows.empty());
  refused("llama", {{"layer_types", R"(["sliding_attention","full_attention","full_attention"])"}}, Code::unsupported,
          "layer_types \"sliding_attention\" is not supported in a llama");
}

TEST(LlamaConfig, RefusesVariantsByKeyAndValue) {
  for (const char* family : kFamilies) {
    refused(family, {{"hidden_act", "\"quick_gelu\""}}, Code::unsupported,
            "hidden_act \"quick_gelu\" is not supported; gelu_new, gelu_pytorch_tanh, gelu, relu, silu, swish are");
    refused(family, {{"hidden_act", "null"}}, Code::corrupt, "hidden_act is null, not a string");
    for (const std::string key :
         {"add_cross_attention", "is_encoder_decoder", "attn_logit_softcapping", "final_logit_softcapping",
          "query_pre_attn_scalar", "attention_chunk_size", "no_rope_layers", "use_qk_norm", "qk_norm", "qk_layernorm",
          "clip_qkv", "alibi", "use_mrope", "use_parallel_residual", "parallel_attn", "num_local_experts",
          "num_experts", "kv_lora_rank"}) {
      refused(family, {{key, "8"}}, Code::unsupported, key + " 8 is not supported");
      refused(family, {{key, "true"}}, Code::unsupported, key + " true is not supported");
      EXPECT_EQ(parsed(family, {{key, "false"}}).family, family);
      EXPECT_EQ(parsed(family, {{key, "null"}}).family, family);
    }
    for (const std::string key : {"pretraining_tp", "attention_multiplier", "residual_multiplier", "logits_scaling",
                                  "embedding_multiplier", "logit_scale"}) {
      refused(family, {{key, "2"}}, Code::unsupported, key + " 2 is not supported; 1 is");
      refused(family, {{key, "\"1\""}}, Code::unsupported, key + " \"1\" is not supported; 1 is");
      EXPECT_EQ(parsed(family, {{key, "1.0"}}).family, family);
    }
    refused(family, {{"quantization_config", R"({"bits":4})"}}, Code::unsupported,
            "quantization_config an object is not supported");
    refused(family, {{"pruned_heads", R"({"0":[1]})"}}, Code::unsupported, "pruned_heads an object is not supported");
    refused(family, {{"eos_token_id", "[1,2]"}}, Code::unsupported,
            "eos_token_id is a list of 2 ids; one is supported");
  }
}

TEST(LlamaConfig, EverySizeHasToBeThereAndMakeSense) {
  for (const std::string key : {"num_hidden_layers", "num_attention_heads", "hidden_size", "intermediate_size",
                                "vocab_size", "max_position_embeddings"}) {
    for (const char* family : kFamilies) refused(family, {{key, ""}}, Code::corrupt, key + " is missing");
    for (const std::string bad :
         {"0", "-1", "1.5", "2.0", "\"2\"", "null", "true", "[]", "2147483648", "18446744073709551616", "1e3"}) {
      refused("llama", {{key, bad}}, Code::corrupt, key + " is ");
    }
  }
  for (const std::string key : {"num_key_value_heads", "head_dim"}) {
    for (const std::string bad : {"0", "-1", "1.5", "\"2\"", "true", "2147483648"}) {
      refused("llama", {{key, bad}}, Code::corrupt, key + " is " + bad + ", not an integer from 1 to 2147483647");
    }
  }
  const auto wrong = [](const Changes& changes, const std::string& error) {
    refused("llama", changes, Code::corrupt, error);
  };
  wrong({{"hidden_size", "130"}}, "hidden_size 130 is not a multiple of 32 heads, and there is no head_dim");
  wrong({{"hidden_size", "96"}}, "head size 3 is odd");
  wrong({{"head_dim", "5"}}, "head size 5 is odd");
  wrong({{"num_key_value_heads", "5"}}, "32 heads are not a multiple of 5 KV heads");
  wrong({{"num_key_value_heads", "64"}}, "32 heads are not a multiple of 64 KV heads");
  refused("qwen2", {{"num_attention_heads", "16"}}, Code::corrupt, "16 heads are not a multiple of 32 KV heads");
  refused("mistral", {{"num_attention_heads", "4"}}, Code::corrupt, "4 heads are not a multiple of 8 KV heads");
  wrong({{"head_dim", "2147483646"}}, "32 heads and 2 x 32 KV heads of size 2147483646 are together more than");
  wrong({{"num_attention_heads", "2147483647"}, {"num_key_value_heads", "1"}, {"head_dim", "2"}},
        "2147483647 heads and 2 x 1 KV heads of size 2 are together more than 2147483647");
  wrong({{"intermediate_size", "1073741824"}}, "inner width 1073741824 is more than 1073741823");
  wrong({{"num_hidden_layers", "65537"}}, "65537 layers are more than 65536");
  wrong({{"num_hidden_layers", "2147483647"}}, "2147483647 layers are more than 65536");
  // 65536 layers x 3 x 2^29 x 2^30 weights of the MLP are 1.1e23; the rest is far less.
  wrong({{"num_hidden_layers", "65536"},
         {"hidden_size", "536870912"},
         {"head_dim", "2"},
         {"intermediate_size", "1073741823"}},
        "about 1.1e+23 parameters are more than 2^60");
  wrong({{"hidden_size", "2147483646"}, {"head_dim", "2"}, {"vocab_size", "2147483647"}},
        "about 9.2e+18 parameters are more than 2^60");
}

TEST(LlamaConfig, EveryValueHasItsType) {
  for (const char* bad : {"0", "-1.0", "null", "\"1e-5\"", "true"}) {
    refused("llama", {{"rms_norm_eps", bad}}, Code::corrupt,
            std::string("rms_norm_eps is ") + bad + ", not a positive number");
  }
  for (const std::string key : {"attention_bias", "mlp_bias", "tie_word_embeddings"}) {
    for (const std::string bad : {"1", "null", "\"true\""}) {
      refused("llama", {{key, bad}}, Code::corrupt, key + " is " + bad + ", not true or false");
    }
  }
  for (const std::string key : {"bos_token_id", "eos_token_id"}) {
    EXPECT_EQ(parsed("llama", {{key, "null"}}).eos, std::nullopt);
    for (const std::string bad : {"50", "-1", "1.0", "\"a\"", "4294967296", "{}"}) {
      refused("llama", {{key, bad}}, Code::corrupt, key + " is ");
    }
  }
}

TEST(LlamaConfig, ChecksWhatWasNotParsed) {
  const ModelConfig good = parsed("llama");
  const auto wrong = [&](const std::function<void(ModelConfig&)>& change, const std::string& error) {
    ModelConfig config = good;
    change(config);
    expect_error(check_config(config, "c"), Code::corrupt, "c: " + error);
  };
  wrong([](auto& c) { c.kv_heads = 0; }, "number of KV heads 0 is not from 1");
  wrong([](auto& c) { c.head_dim = -2; }, "head size -2 is not from 1");
  wrong([](auto& c) { c.rope.theta = std::numeric_limits<double>::quiet_NaN(); }, "rotary theta nan is not a number");
  wrong([](auto& c) { c.rope.theta = std::numeric_limits<double>::infinity(); }, "rotary theta inf is not a number");
  wrong([](auto& c) { c.rope.factor = 0; }, "rotary factor 0 is not a number from 1");
  wrong([](auto& c) { c.rope.original_context = 0; }, "rotary original context 0 is not from 1");
  wrong([](auto& c) { c.windows = {0, -1, 0}; }, "window -1 is not from 0 to 2147483647");
  wrong([](auto& c) { c.windows = {0, 0, 0, 0}; }, "4 windows are more than 3 layers");
  wrong([](auto& c) { c.bos = 50; }, "token 50 is not in the vocabulary of 50");
}

// Published config.json files, as their repositories have them.
TEST(LlamaConfig, ReadsPublishedFiles) {
  const ModelConfig stories = parsed_text(R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
    "hidden_size":64,"intermediate_size":172,"num_hidden_layers":5,"num_attention_heads":8,"num_key_value_heads":4,
    "head_dim":8,"vocab_size":512,"max_position_embeddings":512,"rms_norm_eps":1e-05,"rope_theta":10000.0,
    "rope_scaling":null,"hidden_act":"silu","attention_bias":false,"mlp_bias":false,"tie_word_embeddings":true,
    "bos_token_id":1,"eos_token_id":2,"initializer_range":0.02,"torch_dtype":"float32","use_cache":true})");
  ModelConfig expected;
  expected.family = "llama";
  expected.layers = 5;
  expected.heads = 8;
  expected.kv_heads = 4;
  expected.head_dim = 8;
  expected.width = 64;
  expected.inner = 172;
  expected.vocab = 512;
  expected.context = 512;
  expected.activation = Activation::silu;
  expected.norm_epsilon = 1e-5;
  expected.tied_head = true;
  expected.bos = 1;
  expected.eos = 2;
  EXPECT_EQ(stories, expected);

  const ModelConfig llama = parsed_text(R"({"architectures":["LlamaForCausalLM"],"attention_bias":false,
    "attention_dropout":0.0,"bos_token_id":128000,"eos_token_id":128001,"head_dim":64,"hidden_act":"silu",
    "hidden_size":2048,"initializer_range":0.02,"intermediate_size":8192,"max_position_embeddings":131072,
    "mlp_bias":false,"model_type":"llama","num_attention_heads":32,"num_hidden_layers":16,"num_key_value_heads":8,
    "pretraining_tp":1,"rms_norm_eps":1e-05,"rope_scaling":{"factor":32.0,"high_freq_factor":4.0,
    "low_freq_factor":1.0,"original_max_position_embeddings":8192,"rope_type":"llama3"},"rope_theta":500000.0,
    "tie_word_embeddings":true,"torch_dtype":"bfloat16","transformers_version":"4.45.0.dev0","use_cache":true,
    "vocab_size":128256})");
  ModelConfig preset = make_random("random:llama-1b")->config;
  EXPECT_EQ(preset.context, 8192);
  preset.context = 131072;
  EXPECT_EQ(llama, preset);
  EXPECT_EQ(llama.width, 2048);
  EXPECT_EQ(llama.heads, 32);
  EXPECT_EQ(llama.rope, (Rope{500000, Rope::Scaling::llama3, 32, 1, 4, 8192}));

  const ModelConfig mistral = parsed_text(R"({"architectures":["MistralForCausalLM"],"bos_token_id":1,
    "eos_token_id":2,"hidden_act":"silu","hidden_size":4096,"initializer_range":0.02,"intermediate_size":14336,
    "max_position_embeddings":32768,"model_type":"mistral","num_attention_heads":32,"num_hidden_layers":32,
    "num_key_value_heads":8,"rms_norm_eps":1e-05,"rope_theta":10000.0,"sliding_window":4096,
    "tie_word_embeddings":false,"torch_dtype":"bfloat16","transformers_version":"4.34.0.dev0","use_cache":true,
    "vocab_size":32000})");
  EXPECT_EQ(mistral.head_dim, 128);
  EXPECT_EQ(mistral.kv_heads, 8);
  EXPECT_EQ(mistral.inner, 14336);
  EXPECT_EQ(mistral.windows, std::vector<Pos>(32, 4096));
  EXPECT_FALSE(mistral.tied_head);
  EXPECT_FALSE(mistral.qkv_bias);

  const ModelConfig qwen = parsed_text(R"({"architectures":["Qwen2ForCausalLM"],"attention_dropout":0.0,
    "bos_token_id":151643,"eos_token_id":151643,"hidden_act":"silu","hidden_size":896,"initializer_range":0.02,
    "intermediate_size":4864,"max_position_embeddings":32768,"max_window_layers":24,"model_type":"qwen2",
    "num_attention_heads":14,"num_hidden_layers":24,"num_key_value_heads":2,"rms_norm_eps":1e-06,
    "rope_theta":1000000.0,"sliding_window":32768,"tie_word_embeddings":true,"torch_dtype":"bfloat16",
    "transformers_version":"4.40.1","use_cache":true,"use_mrope":false,"use_sliding_window":false,
    "vocab_size":151936})");
  EXPECT_EQ(qwen.head_dim, 64);
  EXPECT_EQ(qwen.kv_heads, 2);
  EXPECT_EQ(qwen.rope, Rope{1000000});
  EXPECT_TRUE(qwen.qkv_bias);
  EXPECT_FALSE(qwen.out_bias);
  EXPECT_TRUE(qwen.tied_head);
  EXPECT_TRUE(qwen.windows.empty());
  EXPECT_EQ(qwen.eos, 151643);
}

TEST(LlamaConfig, AnyCutOfAFileIsRefused) {
  const std::string whole = config_text("mistral", {{"rope_scaling", R"({"type":"linear","factor":2})"}});
  for (std::size_t size = 0; size < whole.size(); ++size) {
    expect_error(parse_config(whole.substr(0, size), "c"), Code::corrupt, "c: not JSON at byte ");
  }
}

}  // namespace
}  // namespace stet::weights
