// The config.json of Llama, Mistral and Qwen2, in every spelling that transformers 4 and 5 write.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "weights/checkpoint.hpp"
#include "weights/config_reader.hpp"
#include "weights/json.hpp"
#include "weights/printable.hpp"

namespace stet::weights {
namespace {

using nlohmann::json;

constexpr int kMost = std::numeric_limits<int>::max();

/// `rope_type` or, in the old spelling, `type`. Older versions prefer the one and newer ones the other where both are
/// there, so they have to agree.
std::string rope_type(ConfigReader& rope, const char* missing) {
  const json *type = rope.given("type"), *rope_type = rope.given("rope_type");
  if (type != nullptr && rope_type != nullptr && *type != *rope_type) {
    rope.refuse(Code::corrupt, fmt::format("type is {}, but rope_type is {}", spelled(*type), spelled(*rope_type)));
  }
  if (type == nullptr && rope_type == nullptr) {
    if (missing == nullptr) rope.refuse(Code::corrupt, "rope_type is missing");
    return missing == nullptr ? "default" : missing;
  }
  return rope.text(rope_type != nullptr ? "rope_type" : "type", "");
}

/// The frequencies' scaling. Least values keep every frequency finite.
void read_scaling(ConfigReader& rope, const std::string& type, Rope& out) {
  if (type == "default") return;
  if (type == "linear") {
    out.scaling = Rope::Scaling::linear;
    out.factor = rope.at_least("factor", 1);
  } else if (type == "llama3") {
    out.scaling = Rope::Scaling::llama3;
    out.factor = rope.at_least("factor", 1);
    out.low_frequency = rope.at_least("low_freq_factor", 0);
    out.high_frequency = rope.at_least("high_freq_factor", 0);
    out.original_context = rope.size("original_max_position_embeddings");
  } else {
    rope.refuse(Code::unsupported,
                fmt::format("rope_type \"{}\" is not supported; default, linear and llama3 are", printable(type)));
  }
}

/// rope_theta beside rope_scaling (transformers 4), or all in rope_parameters (5).
Rope read_rope(ConfigReader& reader) {
  Rope rope;
  if (reader.find("rope_theta") != nullptr) rope.theta = reader.at_least("rope_theta", 1);
  reader.must_be_one("partial_rotary_factor");
  const json *scaling = reader.given("rope_scaling"), *parameters = reader.given("rope_parameters");
  if (scaling != nullptr && parameters != nullptr && *scaling != *parameters) {
    reader.refuse(Code::corrupt, "rope_scaling and rope_parameters are both there and differ");
  }
  const char* key = parameters != nullptr ? "rope_parameters" : "rope_scaling";
  const json* object = parameters != nullptr ? parameters : scaling;
  if (object == nullptr) return rope;
  if (!object->is_object()) {
    reader.wrong(key, *object, "null or an object");
    return rope;
  }
  ConfigReader inner = reader.within(key, *object);
  for (const char* layers : {"full_attention", "sliding_attention"}) inner.must_be_off(layers);
  inner.must_be_one("partial_rotary_factor");
  read_scaling(inner, rope_type(inner, parameters != nullptr ? "default" : nullptr), rope);
  if (inner.find("rope_theta") != nullptr) {
    const double theta = inner.at_least("rope_theta", 1);
    if (reader.find("rope_theta") != nullptr && theta != rope.theta) {
      inner.refuse(Code::corrupt, fmt::format("rope_theta is {}, but {} outside", theta, rope.theta));
    }
    rope.theta = theta;
  }
  reader.adopt(inner);
  return rope;
}

/// A window as its key says: 0 for null.
Pos read_window(ConfigReader& reader, int missing) {
  constexpr const char* kKey = "sliding_window";
  if (reader.find(kKey) != nullptr && reader.given(kKey) == nullptr) return 0;
  return reader.size(kKey, missing);
}

/// layer_types over the windows that the other keys give. Only Qwen2's class reads it; in the files of the others it
/// may say what holds anyway.
void read_layer_types(ConfigReader& reader, Pos window, ModelConfig& config) {
  const json* types = reader.given("layer_types");
  if (types == nullptr) return;
  if (!types->is_array() || types->size() != static_cast<std::size_t>(config.layers)) {
    return reader.wrong("layer_types", *types, fmt::format("a list of {} layers' types", config.layers));
  }
  std::vector<Pos> windows(types->size(), 0);
  for (std::size_t layer = 0; layer < types->size(); ++layer) {
    const json& type = (*types)[layer];
    if (is_text(type, "full_attention")) continue;
    if (!is_text(type, "sliding_attention")) {
      return reader.refuse(Code::unsupported, fmt::format("layer_types {} is not supported; \"full_attention\" and "
                                                          "\"sliding_attention\" are",
                                                          spelled(type)));
    }
    if (config.family == "llama") {
      return reader.refuse(Code::unsupported, "layer_types \"sliding_attention\" is not supported in a llama");
    }
    if (window == 0) {
      return reader.refuse(Code::corrupt,
                           fmt::format("layer_types has sliding_attention in layer {}, but there is no window{}", layer,
                                       config.family == "qwen2" ? " (sliding_window, use_sliding_window)" : ""));
    }
    windows[layer] = window;
  }
  if (config.family != "qwen2" && windows != config.windows) {
    return reader.refuse(
        Code::unsupported,
        fmt::format("layer_types of full_attention beside a sliding_window is not supported in a {}", config.family));
  }
  config.windows = std::move(windows);
}

void read_windows(ConfigReader& reader, ModelConfig& config) {
  constexpr int kClassWindow = 4096, kClassFirstLayer = 28;
  const auto layers = static_cast<std::size_t>(config.layers);
  if (reader.error() || config.layers > kMaxLayers) return;  // check_config refuses the layers
  config.windows.assign(layers, 0);
  Pos window = 0;
  if (config.family == "mistral") {
    window = read_window(reader, kClassWindow);
    config.windows.assign(layers, window);
  } else if (config.family == "qwen2") {
    const bool used = reader.flag("use_sliding_window", false);
    window = used ? read_window(reader, kClassWindow) : 0;
    // max_window_layers layers from the bottom see everything; 0 is a value, so size() does not read it.
    std::uint64_t first = kClassFirstLayer;
    if (const json* value = reader.given("max_window_layers"); value != nullptr) {
      if (!value->is_number_unsigned()) return reader.wrong("max_window_layers", *value, "an integer from 0");
      first = value->get<std::uint64_t>();
    }
    for (std::uint64_t layer = first; layer < layers; ++layer) config.windows[layer] = window;
  }
  read_layer_types(reader, window, config);
  if (std::all_of(config.windows.begin(), config.windows.end(), [](Pos w) { return w == 0; })) config.windows.clear();
}

/// Keys of relatives that compute something else under the same model_type.
constexpr const char* kVariants[] = {"add_cross_attention",
                                     "is_encoder_decoder",
                                     "pruned_heads",
                                     "quantization_config",
                                     "attn_logit_softcapping",
                                     "final_logit_softcapping",
                                     "query_pre_attn_scalar",
                                     "attention_chunk_size",
                                     "no_rope_layers",
                                     "use_qk_norm",
                                     "qk_norm",
                                     "qk_layernorm",
                                     "clip_qkv",
                                     "alibi",
                                     "use_mrope",
                                     "use_parallel_residual",
                                     "parallel_attn",
                                     "num_local_experts",
                                     "num_experts",
                                     "kv_lora_rank"};
constexpr const char* kFactors[] = {"pretraining_tp", "attention_multiplier", "residual_multiplier",
                                    "logits_scaling", "embedding_multiplier", "logit_scale"};

}  // namespace

bool is_llama(const ModelConfig& config) noexcept {
  return config.family == "llama" || config.family == "mistral" || config.family == "qwen2";
}

void parse_llama(ConfigReader& reader, ModelConfig& config) {
  for (const char* key : kVariants) reader.must_be_off(key);
  for (const char* key : kFactors) reader.must_be_one(key);
  const bool llama = config.family == "llama", qwen2 = config.family == "qwen2";
  config.layers = reader.size("num_hidden_layers");
  config.heads = reader.size("num_attention_heads");
  config.width = reader.size("hidden_size");
  config.inner = reader.size("intermediate_size");
  config.vocab = reader.size("vocab_size");
  config.context = reader.size("max_position_embeddings");
  config.kv_heads = config.heads;  // what null means to each class; absence means the default of the class
  if (const json* value = reader.find("num_key_value_heads"); value == nullptr) {
    if (!llama) config.kv_heads = qwen2 ? 32 : 8;
  } else if (!value->is_null()) {
    config.kv_heads = reader.size("num_key_value_heads");
  }
  if (reader.given("head_dim") != nullptr) {
    config.head_dim = reader.size("head_dim");
  } else if (config.width % config.heads != 0) {
    reader.refuse(Code::corrupt, fmt::format("hidden_size {} is not a multiple of {} heads, and there is no head_dim",
                                             config.width, config.heads));
  } else {
    config.head_dim = config.width / config.heads;
  }
  config.norm_epsilon = reader.positive("rms_norm_eps", 1e-6);
  config.activation = reader.activation(
      "hidden_act", "silu", {Activation::silu, Activation::gelu_tanh, Activation::gelu_erf, Activation::relu});
  config.qkv_bias = config.out_bias = llama && reader.flag("attention_bias", false);
  if (qwen2) config.qkv_bias = true;
  config.mlp_bias = llama && reader.flag("mlp_bias", false);
  config.tied_head = reader.flag("tie_word_embeddings", false);
  config.bos = reader.token("bos_token_id", config.vocab, std::nullopt);
  config.eos = reader.token("eos_token_id", config.vocab, std::nullopt);
  config.rope = read_rope(reader);
  read_windows(reader, config);
}

std::string llama_fault(const ModelConfig& config) {
  const std::int64_t heads = config.heads, kv_heads = config.kv_heads, head_dim = config.head_dim;
  if (kv_heads < 1) return fmt::format("number of KV heads {} is not from 1 to {}", kv_heads, kMost);
  if (head_dim < 1) return fmt::format("head size {} is not from 1 to {}", head_dim, kMost);
  if (heads % kv_heads != 0) return fmt::format("{} heads are not a multiple of {} KV heads", heads, kv_heads);
  if (head_dim % 2 != 0) return fmt::format("head size {} is odd: rotary positions turn pairs", head_dim);
  // One product may make query, key and value, or gate and up.
  if (heads + 2 * kv_heads > kMost / head_dim) {
    return fmt::format("{} heads and 2 x {} KV heads of size {} are together more than {}", heads, kv_heads, head_dim,
                       kMost);
  }
  if (config.inner > kMost / 2) return fmt::format("inner width {} is more than {}", config.inner, kMost / 2);
  const Rope& rope = config.rope;
  const auto from = [](double value, double least) { return value >= least && std::isfinite(value); };
  if (!from(rope.theta, 1)) return fmt::format("rotary theta {} is not a number from 1", rope.theta);
  if (!from(rope.factor, 1)) return fmt::format("rotary factor {} is not a number from 1", rope.factor);
  if (rope.scaling == Rope::Scaling::llama3 &&
      (!from(rope.low_frequency, 0) || !from(rope.high_frequency, 0) || rope.low_frequency >= rope.high_frequency)) {
    return fmt::format("rotary low_freq_factor {} is not less than high_freq_factor {}", rope.low_frequency,
                       rope.high_frequency);
  }
  if (rope.original_context < 1 || rope.original_context > kMost) {
    return fmt::format("rotary original context {} is not from 1 to {}", rope.original_context, kMost);
  }
  if (config.windows.size() > static_cast<std::size_t>(config.layers)) {
    return fmt::format("{} windows are more than {} layers", config.windows.size(), config.layers);
  }
  for (const Pos window : config.windows) {
    if (window < 0 || window > kMost) return fmt::format("window {} is not from 0 to {}", window, kMost);
  }
  return "";
}

}  // namespace stet::weights
