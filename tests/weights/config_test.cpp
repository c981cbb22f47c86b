#include <gtest/gtest.h>

#include <map>

#include "support.hpp"
#include "weights/checkpoint.hpp"

namespace stet::weights {
namespace {

/// A small valid config with some members replaced; an empty text removes one.
std::string config_text(const std::map<std::string, std::string>& changes = {}) {
  std::map<std::string, std::string> members = {
      {"model_type", "\"gpt2\""}, {"n_layer", "2"},      {"n_head", "3"},
      {"n_embd", "12"},           {"n_positions", "32"}, {"vocab_size", "50"}};
  for (const auto& [key, value] : changes) members[key] = value;
  std::string text;
  for (const auto& [key, value] : members) {
    if (!value.empty()) text += (text.empty() ? "{\"" : ",\"") + key + "\":" + value;
  }
  return text + "}";
}

ModelConfig parsed(const std::map<std::string, std::string>& changes) {
  const auto config = parse_config(config_text(changes), "c");
  EXPECT_TRUE(config) << config.error().message;
  return config.value_or(ModelConfig{});
}

void refused(const std::map<std::string, std::string>& changes, Code code, const std::string& error) {
  SCOPED_TRACE(config_text(changes));
  expect_error(parse_config(config_text(changes), "c"), code, "c: " + error);
}

TEST(Config, MissingKeysMeanWhatTheyMeanToHuggingFace) {
  const ModelConfig config = parsed({});
  EXPECT_EQ(config.family, "gpt2");
  EXPECT_EQ(config.layers, 2);
  EXPECT_EQ(config.heads, 3);
  EXPECT_EQ(config.kv_heads, 3);
  EXPECT_EQ(config.head_dim, 4);
  EXPECT_EQ(config.width, 12);
  EXPECT_EQ(config.inner, 48);
  EXPECT_EQ(config.vocab, 50);
  EXPECT_EQ(config.context, 32);
  EXPECT_EQ(config.activation, Activation::gelu_tanh);
  EXPECT_EQ(config.norm_epsilon, 1e-5);
  EXPECT_TRUE(config.scale_attention);
  EXPECT_FALSE(config.scale_attention_by_layer);
  EXPECT_TRUE(config.tied_head);
  EXPECT_EQ(config.bos, std::nullopt);
  EXPECT_EQ(config.eos, std::nullopt);
  EXPECT_EQ(parsed({{"vocab_size", "50257"}}).eos, 50256);
  EXPECT_EQ(parsed({{"vocab_size", "50256"}}).eos, std::nullopt);
}

TEST(Config, EveryVariantIsRead) {
  const ModelConfig config = parsed({{"n_inner", "20"},
                                     {"n_ctx", "64"},
                                     {"activation_function", "\"relu\""},
                                     {"layer_norm_epsilon", "0.001"},
                                     {"scale_attn_weights", "false"},
                                     {"scale_attn_by_inverse_layer_idx", "true"},
                                     {"reorder_and_upcast_attn", "true"},
                                     {"tie_word_embeddings", "false"},
                                     {"bos_token_id", "0"},
                                     {"eos_token_id", "[49]"},
                                     {"add_cross_attention", "false"},
                                     {"pruned_heads", "{}"},
                                     {"some_new_key", "[{}]"}});
  EXPECT_EQ(config.inner, 20);
  EXPECT_EQ(config.context, 32);
  EXPECT_EQ(config.activation, Activation::relu);
  EXPECT_EQ(config.norm_epsilon, 1e-3);
  EXPECT_FALSE(config.scale_attention);
  EXPECT_TRUE(config.scale_attention_by_layer);
  EXPECT_FALSE(config.tied_head);
  EXPECT_EQ(config.bos, 0);
  EXPECT_EQ(config.eos, 49);
  EXPECT_EQ(parsed({{"n_inner", "null"}}).inner, 48);
  EXPECT_EQ(parsed({{"n_positions", ""}, {"n_ctx", "64"}}).context, 64);
  EXPECT_EQ(parsed({{"activation_function", "\"gelu\""}}).activation, Activation::gelu_erf);
  EXPECT_EQ(parsed({{"activation_function", "\"gelu_pytorch_tanh\""}}).activation, Activation::gelu_tanh);
  EXPECT_EQ(parsed({{"model_type", ""}, {"architectures", R"(["GPT2LMHeadModel"])"}}).family, "gpt2");
  EXPECT_EQ(parsed({{"bos_token_id", "null"}, {"vocab_size", "60000"}}).bos, std::nullopt);
  EXPECT_EQ(parsed({{"layer_norm_epsilon", "1"}}).norm_epsilon, 1);
}

TEST(Config, RefusesOtherModelsByKeyAndValue) {
  refused({{"model_type", "\"bert\""}}, Code::unsupported,
          "model_type \"bert\" is not supported; \"gpt2\", \"llama\", \"mistral\" and \"qwen2\" are");
  refused({{"model_type", "2"}}, Code::unsupported, "model_type 2 is not supported");
  refused({{"model_type", ""}}, Code::corrupt, "model_type is missing");
  refused({{"model_type", ""}, {"architectures", R"(["BertModel"])"}}, Code::unsupported,
          "model_type is missing and architectures [\"BertModel\"] is not supported; GPT2LMHeadModel, ");
  refused({{"activation_function", "\"silu\""}}, Code::unsupported, "activation_function \"silu\" is not supported");
  refused({{"activation_function", "null"}}, Code::corrupt, "activation_function is null, not a string");
  refused({{"add_cross_attention", "true"}}, Code::unsupported, "add_cross_attention true is not supported");
  refused({{"is_encoder_decoder", "true"}}, Code::unsupported, "is_encoder_decoder true is not supported");
  refused({{"pruned_heads", R"({"0":[1]})"}}, Code::unsupported, "pruned_heads an object is not supported");
  refused({{"quantization_config", R"({"bits":4})"}}, Code::unsupported,
          "quantization_config an object is not supported");
  refused({{"eos_token_id", "[1,2]"}}, Code::unsupported, "eos_token_id is a list of 2 ids; one is supported");
  refused({{"eos_token_id", "[]"}}, Code::unsupported, "eos_token_id is a list of 0 ids");
}

TEST(Config, EverySizeHasToBeThereAndMakeSense) {
  for (const std::string key : {"n_layer", "n_head", "n_embd", "n_positions", "vocab_size"}) {
    refused({{key, ""}}, Code::corrupt, key + " is missing");
    for (const std::string bad :
         {"0", "-1", "1.5", "2.0", "\"2\"", "null", "true", "[]", "2147483648", "18446744073709551616", "1e3"}) {
      refused({{key, bad}}, Code::corrupt, key + " is ");
    }
  }
  refused({{"n_inner", "0"}}, Code::corrupt, "n_inner is 0, not an integer from 1 to 2147483647");
  refused({{"n_inner", "-4"}}, Code::corrupt, "n_inner is -4, not");
  refused({{"n_embd", "13"}}, Code::corrupt, "width 13 is not a multiple of 3 heads");
  refused({{"n_embd", "3"}, {"n_head", "6"}}, Code::corrupt, "width 3 is not a multiple of 6 heads");
  refused({{"n_embd", "600000000"}}, Code::corrupt, "n_embd 600000000 is more than 536870911");
  refused({{"n_embd", "715827885"}, {"n_inner", "1"}}, Code::corrupt, "width 715827885 is more than 715827882");
  refused({{"n_layer", "65537"}}, Code::corrupt, "65537 layers are more than 65536");
  refused({{"n_layer", "65536"}, {"n_embd", "300000000"}}, Code::corrupt,
          "about 7.1e+22 parameters are more than 2^60");
  EXPECT_EQ(parsed({{"vocab_size", "2147483647"}, {"n_positions", "2147483647"}, {"eos_token_id", "2147483646"}}).eos,
            2147483646);
}

TEST(Config, EveryValueHasItsType) {
  refused({{"layer_norm_epsilon", "0"}}, Code::corrupt, "layer_norm_epsilon is 0, not a positive number");
  refused({{"layer_norm_epsilon", "-1e-5"}}, Code::corrupt, "layer_norm_epsilon is -1e-05, not a positive number");
  refused({{"layer_norm_epsilon", "null"}}, Code::corrupt, "layer_norm_epsilon is null");
  for (const std::string key :
       {"scale_attn_weights", "scale_attn_by_inverse_layer_idx", "tie_word_embeddings", "reorder_and_upcast_attn"}) {
    for (const std::string bad : {"1", "null", "\"true\""})
      refused({{key, bad}}, Code::corrupt, key + " is " + bad + ", not true or false");
  }
  for (const std::string key : {"bos_token_id", "eos_token_id"}) {
    for (const std::string bad : {"50", "-1", "1.0", "\"a\"", "4294967296", "{}"})
      refused({{key, bad}}, Code::corrupt, key + " is ");
  }
  refused({{"eos_token_id", "50"}}, Code::corrupt, "eos_token_id is 50, not null or an id of the vocabulary of 50");
  refused({{"eos_token_id", "[50]"}}, Code::corrupt, "eos_token_id is 50, not null or an id of the vocabulary of 50");
}

TEST(Config, RefusesTextThatIsNoConfig) {
  expect_error(parse_config("", "c"), Code::corrupt, "c: not JSON at byte 1");
  expect_error(parse_config("[]", "c"), Code::corrupt, "c: is a list, not an object");
  expect_error(parse_config("7", "c"), Code::corrupt, "c: is 7, not an object");
  expect_error(parse_config("{\"n_layer\":1,\"n_layer\":2}", "c"), Code::corrupt, "c: duplicate key n_layer");
  expect_error(parse_config("{\"a\xff\":1}", "c"), Code::corrupt, "c: not UTF-8 at byte 4");
  expect_error(parse_config(std::string(1000, '['), "c"), Code::corrupt, "c: JSON nested deeper than 64");
  const std::string whole = config_text();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    expect_error(parse_config(whole.substr(0, size), "c"), Code::corrupt, "c: not JSON at byte ");
  }
}

TEST(Config, IsReadFromAFolder) {
  const TempFolder folder;
  expect_error(read_config(folder.path()), Code::not_found, "config.json: No such file or directory");
  const auto path = folder.write("config.json", "{}");
  expect_error(read_config(folder.path()), Code::corrupt, path.string() + ": model_type is missing");
  folder.write("config.json", config_text());
  EXPECT_TRUE(read_config(folder.path()));
}

TEST(Config, ChecksWhatWasNotParsed) {
  ModelConfig config = parsed({});
  ASSERT_TRUE(check_config(config, "c"));
  config.inner = 0;
  expect_error(check_config(config, "c"), Code::corrupt, "c: inner width 0 is not from 1 to 2147483647");
  config = parsed({});
  config.context = Pos{1} << 40;
  expect_error(check_config(config, "c"), Code::corrupt, "c: context 1099511627776 is not");
  config = parsed({});
  config.bos = -1;
  expect_error(check_config(config, "c"), Code::corrupt, "c: token -1 is not in the vocabulary of 50");
}

}  // namespace
}  // namespace stet::weights
