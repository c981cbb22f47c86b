#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "base/file.hpp"
#include "weights/checkpoint.hpp"
#include "weights/config_reader.hpp"
#include "weights/json.hpp"
#include "weights/printable.hpp"

namespace stet::weights {
namespace {

using nlohmann::json;

constexpr int kMost = std::numeric_limits<int>::max();

/// "gpt2", "llama", "mistral" or "qwen2": model_type, or without it the class that wrote the checkpoint.
std::string read_family(ConfigReader& reader) {
  constexpr std::pair<const char*, const char*> kFamilies[] = {{"gpt2", "GPT2LMHeadModel"},
                                                               {"llama", "LlamaForCausalLM"},
                                                               {"mistral", "MistralForCausalLM"},
                                                               {"qwen2", "Qwen2ForCausalLM"}};
  if (const json* type = reader.find("model_type"); type != nullptr) {
    for (const auto& [family, unused] : kFamilies) {
      if (is_text(*type, family)) return family;
    }
    reader.refuse(Code::unsupported, fmt::format("model_type {} is not supported; \"gpt2\", \"llama\", \"mistral\" "
                                                 "and \"qwen2\" are",
                                                 spelled(*type)));
    return "";
  }
  const json* classes = reader.find("architectures");
  if (classes == nullptr) {
    reader.refuse(Code::corrupt, "model_type is missing");
    return "";
  }
  for (const auto& [family, name] : kFamilies) {
    const auto is_class = [name = name](const json& item) { return is_text(item, name); };
    if (classes->is_array() && std::any_of(classes->begin(), classes->end(), is_class)) return family;
  }
  reader.refuse(Code::unsupported, fmt::format("model_type is missing and architectures {} is not supported; "
                                               "GPT2LMHeadModel, LlamaForCausalLM, MistralForCausalLM and "
                                               "Qwen2ForCausalLM are",
                                               printable(classes->dump(-1, ' ', true))));
  return "";
}

void parse_gpt2(ConfigReader& reader, ModelConfig& config) {
  for (const char* key : {"add_cross_attention", "is_encoder_decoder", "pruned_heads", "quantization_config"}) {
    reader.must_be_off(key);
  }
  config.layers = reader.size("n_layer");
  config.heads = reader.size("n_head");
  config.width = reader.size("n_embd");
  config.vocab = reader.size("vocab_size");
  // Old files say n_ctx, some say both; the embedding has n_positions rows.
  config.context =
      reader.size(reader.find("n_positions") == nullptr && reader.find("n_ctx") != nullptr ? "n_ctx" : "n_positions");
  if (reader.given("n_inner") != nullptr) {
    config.inner = reader.size("n_inner");
  } else if (config.width > kMost / 4) {
    reader.refuse(Code::corrupt, fmt::format("n_embd {} is more than {}", config.width, kMost / 4));
  } else {
    config.inner = 4 * config.width;
  }
  config.kv_heads = config.heads;
  config.head_dim = config.width / config.heads;  // check_config refuses a remainder
  config.activation = reader.activation("activation_function", "gelu_new",
                                        {Activation::gelu_tanh, Activation::gelu_erf, Activation::relu});
  config.norm_epsilon = reader.positive("layer_norm_epsilon", 1e-5);
  config.scale_attention = reader.flag("scale_attn_weights", true);
  config.scale_attention_by_layer = reader.flag("scale_attn_by_inverse_layer_idx", false);
  reader.flag("reorder_and_upcast_attn", false);  // an order of half-precision arithmetic: the same function
  config.tied_head = reader.flag("tie_word_embeddings", true);
  constexpr TokenId kEndOfText = 50256;
  const auto missing = kEndOfText < config.vocab ? std::optional(kEndOfText) : std::nullopt;
  config.bos = reader.token("bos_token_id", config.vocab, missing);
  config.eos = reader.token("eos_token_id", config.vocab, missing);
}

/// Of the matrices and vectors, to a few vectors; in double, where nothing overflows.
double parameters_of(const ModelConfig& config) {
  const double width = config.width, inner = config.inner, vocab = config.vocab;
  if (is_llama(config)) {
    const double q = static_cast<double>(config.heads) * config.head_dim;
    const double kv = static_cast<double>(config.kv_heads) * config.head_dim;
    return config.layers * (2 * width * (q + kv) + 3 * width * inner + 4 * width + q + 2 * (kv + inner)) +
           width * (2 * vocab + 1);
  }
  return config.layers * (4 * width * width + 2 * width * inner + 13 * width) +
         width * (2 * vocab + static_cast<double>(config.context));
}

}  // namespace

Result<void> check_config(const ModelConfig& config, const std::string& name) {
  const auto refuse = [&](std::string_view why) { return fail(Code::corrupt, fmt::format("{}: {}", name, why)); };
  const std::pair<const char*, Pos> sizes[] = {
      {"number of layers", config.layers}, {"number of heads", config.heads}, {"width", config.width},
      {"inner width", config.inner},       {"vocabulary", config.vocab},      {"context", config.context}};
  for (const auto& [what, size] : sizes) {
    if (size < 1 || size > kMost) return refuse(fmt::format("{} {} is not from 1 to {}", what, size, kMost));
  }
  if (config.layers > kMaxLayers) return refuse(fmt::format("{} layers are more than {}", config.layers, kMaxLayers));
  if (is_llama(config)) {
    if (const std::string fault = llama_fault(config); !fault.empty()) return refuse(fault);
  } else if (config.width % config.heads != 0) {
    return refuse(fmt::format("width {} is not a multiple of {} heads", config.width, config.heads));
  } else if (config.width > kMost / 3) {
    return refuse(fmt::format("width {} is more than {}", config.width, kMost / 3));
  }
  const double parameters = parameters_of(config);
  if (!(parameters < 0x1p60)) return refuse(fmt::format("about {:.1e} parameters are more than 2^60", parameters));
  for (const auto& token : {config.bos, config.eos}) {
    if (token && (*token < 0 || *token >= config.vocab)) {
      return refuse(fmt::format("token {} is not in the vocabulary of {}", *token, config.vocab));
    }
  }
  return {};
}

Result<ModelConfig> parse_config(std::string_view text, const std::string& name) {
  const auto object = parse_json(text, name);
  if (!object) return pass(object);
  if (!object->is_object()) return fail(Code::corrupt, fmt::format("{}: is {}, not an object", name, spelled(*object)));
  ConfigReader reader(*object, name);
  ModelConfig config;
  config.family = read_family(reader);
  if (is_llama(config)) {
    parse_llama(reader, config);
  } else {
    parse_gpt2(reader, config);
  }
  if (reader.error()) return Failure(*reader.error());
  if (auto ok = check_config(config, name); !ok) return pass(ok);
  return config;
}

Result<ModelConfig> read_config(const std::filesystem::path& folder) {
  constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{16} << 20;
  const auto path = folder / "config.json";
  const auto text = base::read_text(path, kMaxConfigBytes);
  if (!text) return pass(text);
  return parse_config(*text, path.string());
}

}  // namespace stet::weights
