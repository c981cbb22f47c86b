#include <fmt/format.h>
#include <sys/stat.h>

#include <memory>
#include <optional>

#include "commands.hpp"
#include "console.hpp"
#include "json.hpp"
#include "plan.hpp"
#include "session.hpp"
#include "weights/checkpoint.hpp"

namespace stet::cli {
namespace {

struct InfoFlags {
  ModelFlags model;
  bool json = false;
};

bool is_file(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

Json id_or_null(std::optional<TokenId> id) {
  return id ? Json(*id) : Json(nullptr);
}

Json model_json(const ModelInfo& info, const EngineOptions& options) {
  Json json;
  json["schema"] = kSchema;
  json["model"] = info.name;
  json["family"] = info.family;
  json["parameters"] = info.parameters;
  json["shape"] = {{"layers", info.layers},      {"heads", info.heads},     {"kv_heads", info.kv_heads},
                   {"head_dim", info.head_dim},  {"width", info.width},     {"inner", info.inner},
                   {"vocab", info.vocab},        {"context", info.context}, {"activation", info.activation},
                   {"tied_head", info.tied_head}};
  json["bos"] = id_or_null(info.bos);
  json["eos"] = id_or_null(info.eos);
  json["tokenizer"] = info.has_tokenizer;
  json["dtype"] = name_of(options.dtype);
  json["plan"] = plan_json(info, options);
  json["supported"] = {{"dtypes", {"f32", "f64", "bf16", "f16", "int8", "int4"}},
                       {"caches", {"contiguous", "growing", "paged", "none"}},
                       {"text", info.has_tokenizer}};
  return json;
}

std::string token_words(std::optional<TokenId> id) {
  return id ? std::to_string(*id) : "none";
}

std::string model_text(const ModelInfo& info, const EngineOptions& options) {
  std::string text;
  const auto row = [&text](std::string_view label, const std::string& value) {
    text += fmt::format("{:<18}{}\n", label, printable(value));
  };
  row("model", info.name);
  row("family", fmt::format("{}, {}, head {}", info.family, info.activation, info.tied_head ? "tied" : "untied"));
  row("parameters", std::to_string(info.parameters));
  row("layers", std::to_string(info.layers));
  row("width", fmt::format("{}, inner {}", info.width, info.inner));
  row("heads", fmt::format("{} of dim {}, {} for keys and values", info.heads, info.head_dim, info.kv_heads));
  row("vocabulary", fmt::format("{}, start token {}, end token {}, {} tokenizer", info.vocab, token_words(info.bos),
                                token_words(info.eos), info.has_tokenizer ? "with" : "without"));
  row("context", fmt::format("{} tokens", info.context));
  row("runs with",
      fmt::format("--dtype f32|f64|bf16|f16|int8|int4, --cache contiguous|growing|paged|none, prompts as {}",
                  info.has_tokenizer ? "text or ids" : "ids"));
  return text + plan_text(info, options);
}

Json tensors_json(const std::string& file, const weights::Source& source) {
  Json json;
  json["schema"] = kSchema;
  json["file"] = file;
  json["tensors"] = Json::array();
  std::size_t elements = 0, bytes = 0;
  for (const auto& tensor : source.tensors()) {
    const auto count = static_cast<std::size_t>(tensor.elements());
    json["tensors"].push_back({{"name", tensor.name},
                               {"dtype", name_of(tensor.type)},
                               {"shape", tensor.shape},
                               {"bytes", count * size_of(tensor.type)}});
    elements += count;
    bytes += count * size_of(tensor.type);
  }
  json["elements"] = elements;
  json["bytes"] = bytes;
  return json;
}

std::string tensors_text(const Json& json) {
  std::string text;
  for (const auto& tensor : json["tensors"]) {
    text += fmt::format("{:<4}  {:<16}  {}\n", tensor["dtype"].get<std::string>(), dump(tensor["shape"]),
                        printable(tensor["name"].get<std::string>()));
  }
  return text + fmt::format("{} tensors, {} elements, {} bytes\n", json["tensors"].size(),
                            json["elements"].get<std::size_t>(), json["bytes"].get<std::size_t>());
}

int print(std::string text) {
  text.pop_back();
  return print_line(std::move(text), kOk);
}

int info(const InfoFlags& flags) {
  const std::string model = model_of(flags.model);
  if (is_file(model)) {
    const auto source = weights::open_safetensors(model);
    if (!source) return report(source.error());
    const Json json = tensors_json(model, **source);
    return flags.json ? print_line(dump(json), kOk) : print(tensors_text(json));
  }
  const auto info = Engine::inspect(model, flags.model.engine);
  if (!info) return report(info.error());
  const EngineOptions& options = flags.model.engine;
  return flags.json ? print_line(dump(model_json(*info, options)), kOk) : print(model_text(*info, options));
}

}  // namespace

void add_info(CLI::App& app, Run& run) {
  auto flags = std::make_shared<InfoFlags>();
  auto* sub = app.add_subcommand("info", "What a model is, and the memory it will take");
  sub->footer(
      "Examples:\n"
      "  stet info gpt2/ --batch 8\n"
      "  stet info random:gpt2-medium --dtype f64 --context 512\n"
      "  stet info gpt2/model.safetensors\n\n"
      "No weight is read. A .safetensors file lists its tensors.");
  auto* positional = add_text(
      *sub, "MODEL",
      [flags](std::string model) {
        if (model.empty()) throw CLI::ValidationError("MODEL", "must name a model, not ''");
        flags->model.model = std::move(model);
      },
      "A model as for -m, or a .safetensors file (default: the bundled character model)");
  add_model_flag(*sub, flags->model);
  sub->get_option("-m")->excludes(positional);
  add_dtype_flag(*sub, flags->model);
  add_cache_flags(*sub, flags->model);
  add_size_flags(*sub, flags->model);
  sub->add_flag("--json", flags->json, "One JSON object instead of text (docs/json.md)");
  sub->callback([flags, &run] { run = [flags] { return info(*flags); }; });
}

}  // namespace stet::cli
