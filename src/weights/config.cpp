#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/file.hpp"
#include "weights/checkpoint.hpp"
#include "weights/json.hpp"
#include "weights/printable.hpp"

namespace stet::weights {
namespace {

using nlohmann::json;

constexpr int kMost = std::numeric_limits<int>::max();
constexpr int kMaxLayers = 1 << 16;

/// Takes values out of a config by key. The first thing wrong is kept in `error`; what comes back after it is a
/// default.
class Reader {
 public:
  Reader(const json& object, const std::string& where) : object_(object), where_(where) {}

  const std::optional<Error>& error() const noexcept { return error_; }

  void refuse(Code code, std::string_view why) {
    if (!error_) error_ = Error{code, fmt::format("{}: {}", where_, why)};
  }

  /// Null when the key is missing.
  const json* find(const char* key) const {
    const auto at = object_.find(key);
    return at == object_.end() ? nullptr : &*at;
  }

  int size(const char* key) {
    const json* value = find(key);
    if (value == nullptr) {
      refuse(Code::corrupt, fmt::format("{} is missing", key));
      return 1;
    }
    if (!value->is_number_unsigned() || value->get<std::uint64_t>() < 1 || value->get<std::uint64_t>() > kMost) {
      wrong(key, *value, "an integer from 1 to 2147483647");
      return 1;
    }
    return value->get<int>();
  }

  bool flag(const char* key, bool missing) {
    const json* value = find(key);
    if (value == nullptr) return missing;
    if (!value->is_boolean()) {
      wrong(key, *value, "true or false");
      return missing;
    }
    return value->get<bool>();
  }

  double positive(const char* key, double missing) {
    const json* value = find(key);
    if (value == nullptr) return missing;
    if (!value->is_number() || !(value->get<double>() > 0) || !std::isfinite(value->get<double>())) {
      wrong(key, *value, "a positive number");
      return missing;
    }
    return value->get<double>();
  }

  std::string text(const char* key, std::string missing) {
    const json* value = find(key);
    if (value == nullptr) return missing;
    if (!value->is_string()) {
      wrong(key, *value, "a string");
      return missing;
    }
    return value->get<std::string>();
  }

  /// A token's id, or a list of one.
  std::optional<TokenId> token(const char* key, int vocab) {
    constexpr TokenId kEndOfText = 50256;
    const json* value = find(key);
    if (value == nullptr) return kEndOfText < vocab ? std::optional(kEndOfText) : std::nullopt;
    if (value->is_null()) return std::nullopt;
    if (value->is_array()) {
      if (value->size() != 1) {
        refuse(Code::unsupported, fmt::format("{} is a list of {} ids; one is supported", key, value->size()));
        return std::nullopt;
      }
      value = &value->front();
    }
    if (!value->is_number_unsigned() || value->get<std::uint64_t>() >= static_cast<std::uint64_t>(vocab)) {
      wrong(key, *value, fmt::format("null or an id of the vocabulary of {}", vocab));
      return std::nullopt;
    }
    return value->get<TokenId>();
  }

  /// Refuses a key that changes the model unless it is missing, null, false or empty.
  void must_be_off(const char* key) {
    const json* value = find(key);
    if (value == nullptr || value->is_null() || *value == false) return;
    if (value->is_structured() && value->empty()) return;
    refuse(Code::unsupported, fmt::format("{} {} is not supported", key, spelled(*value)));
  }

 private:
  void wrong(const char* key, const json& value, std::string_view expected) {
    refuse(Code::corrupt, fmt::format("{} is {}, not {}", key, spelled(value), expected));
  }

  const json& object_;
  const std::string& where_;
  std::optional<Error> error_;
};

/// model_type, or without it the class that wrote the checkpoint.
void check_family(Reader& reader) {
  if (const json* type = reader.find("model_type"); type != nullptr) {
    if (*type == "gpt2") return;
    return reader.refuse(Code::unsupported, fmt::format("model_type {} is not supported, \"gpt2\" is", spelled(*type)));
  }
  const json* classes = reader.find("architectures");
  if (classes == nullptr) return reader.refuse(Code::corrupt, "model_type is missing");
  if (classes->is_array() && std::find(classes->begin(), classes->end(), json("GPT2LMHeadModel")) != classes->end())
    return;
  reader.refuse(Code::unsupported, fmt::format("model_type is missing and architectures {} is not supported, "
                                               "[\"GPT2LMHeadModel\"] is",
                                               printable(classes->dump(-1, ' ', true))));
}

Activation read_activation(Reader& reader) {
  const std::string name = reader.text("activation_function", "gelu_new");
  const auto activation = activation_named(name);
  if (!activation) {
    reader.refuse(Code::unsupported,
                  fmt::format("activation_function \"{}\" is not supported, gelu_new, gelu_pytorch_tanh, "
                              "gelu and relu are",
                              printable(name)));
  }
  return activation.value_or(Activation::gelu_tanh);
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
  if (config.width % config.heads != 0) {
    return refuse(fmt::format("width {} is not a multiple of {} heads", config.width, config.heads));
  }
  if (config.width > kMost / 3) return refuse(fmt::format("width {} is more than {}", config.width, kMost / 3));
  const double width = config.width;
  const double parameters = config.layers * (4 * width * width + 2 * width * config.inner + 13 * width) +
                            width * (2.0 * config.vocab + static_cast<double>(config.context));
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
  Reader reader(*object, name);
  check_family(reader);
  for (const char* key : {"add_cross_attention", "is_encoder_decoder", "pruned_heads", "quantization_config"}) {
    reader.must_be_off(key);
  }
  ModelConfig config;
  config.family = "gpt2";
  config.layers = reader.size("n_layer");
  config.heads = reader.size("n_head");
  config.width = reader.size("n_embd");
  config.vocab = reader.size("vocab_size");
  // Old files say n_ctx, some say both; the embedding has n_positions rows.
  config.context =
      reader.size(reader.find("n_positions") == nullptr && reader.find("n_ctx") != nullptr ? "n_ctx" : "n_positions");
  if (const json* inner = reader.find("n_inner"); inner != nullptr && !inner->is_null()) {
    config.inner = reader.size("n_inner");
  } else if (config.width > kMost / 4) {
    reader.refuse(Code::corrupt, fmt::format("n_embd {} is more than {}", config.width, kMost / 4));
  } else {
    config.inner = 4 * config.width;
  }
  config.activation = read_activation(reader);
  config.norm_epsilon = reader.positive("layer_norm_epsilon", 1e-5);
  config.scale_attention = reader.flag("scale_attn_weights", true);
  config.scale_attention_by_layer = reader.flag("scale_attn_by_inverse_layer_idx", false);
  reader.flag("reorder_and_upcast_attn", false);  // an order of half-precision arithmetic: the same function
  config.tied_head = reader.flag("tie_word_embeddings", true);
  config.bos = reader.token("bos_token_id", config.vocab);
  config.eos = reader.token("eos_token_id", config.vocab);
  if (reader.error()) return Failure(*reader.error());
  if (auto ok = check_config(config, name); !ok) return pass(ok);
  config.kv_heads = config.heads;
  config.head_dim = config.width / config.heads;
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
