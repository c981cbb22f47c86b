// `stet cache FILE`: what a saved cache holds.
#include <fmt/format.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "commands.hpp"
#include "console.hpp"
#include "json.hpp"
#include "kv/snapshot.hpp"
#include "options.hpp"

namespace stet::cli {
namespace {

struct CacheFlags {
  std::string file;
  bool check = false, json = false;
};

Json layer_json(const LayerSpec& layer) {
  return {{"kv_heads", layer.kv_heads}, {"k_dim", layer.k_dim},  {"v_dim", layer.v_dim},
          {"k", name_of(layer.k)},      {"v", name_of(layer.v)}, {"window", layer.span.window},
          {"sinks", layer.span.sinks}};
}

Json snapshot_json(const kv::Snapshot& snapshot) {
  Json json;
  json["schema"] = kSchema;
  json["file"] = snapshot.path().string();
  json["bytes"] = snapshot.bytes();
  json["format"] = kv::kFormatVersion;
  json["numerics"] = snapshot.identity().numerics;
  json["weights"] = base::to_text(snapshot.identity().weights);
  json["config"] = snapshot.identity().config;
  json["layers"] = Json::array();
  for (const LayerSpec& layer : snapshot.layers().layers) json["layers"].push_back(layer_json(layer));
  json["sequences"] = Json::array();
  for (const auto& sequence : snapshot.sequences()) {
    Json one = {{"tokens", sequence.tokens}};
    set_text(one, sequence.salt, "salt");
    one["layers"] = Json::array();
    for (const auto& block : sequence.blocks) {
      one["layers"].push_back({{"kept", block.kept}, {"first", block.first}, {"offset", block.offset}});
    }
    json["sequences"].push_back(one);
  }
  return json;
}

// Layers alike, as one.
std::string layers_text(const CacheSpec& spec) {
  std::string text;
  const auto& layers = spec.layers;
  for (std::size_t i = 0, j = 0; i < layers.size(); i = j) {
    while (j < layers.size() && layers[j] == layers[i]) ++j;
    const LayerSpec& layer = layers[i];
    text += fmt::format("layers {}-{}       {} heads, K of {} in {}, V of {} in {}", i, j - 1, layer.kv_heads,
                        layer.k_dim, name_of(layer.k), layer.v_dim, name_of(layer.v));
    if (layer.span.window > 0) text += fmt::format(", window {} and {} sinks", layer.span.window, layer.span.sinks);
    text += '\n';
  }
  return text;
}

std::string snapshot_text(const kv::Snapshot& snapshot) {
  std::string text = printable(fmt::format("file             {}", snapshot.path().string())) + '\n';
  text += fmt::format("format           {}, {} bytes, numerics {}\n", kv::kFormatVersion, snapshot.bytes(),
                      snapshot.identity().numerics);
  text += fmt::format("weights          {}\n", base::to_text(snapshot.identity().weights));
  const std::string& config = snapshot.identity().config;
  for (std::size_t at = 0; at < config.size();) {
    const std::size_t end = std::min(config.find('\n', at), config.size());
    text += printable(fmt::format("{:<17}{}", at == 0 ? "config" : "", config.substr(at, end - at))) + '\n';
    at = end + 1;
  }
  text += layers_text(snapshot.layers());
  for (std::size_t i = 0; i < snapshot.sequences().size(); ++i) {
    const auto& sequence = snapshot.sequences()[i];
    text += fmt::format("sequence {:<8}{} tokens", i, sequence.length());
    if (!sequence.salt.empty()) text += printable(fmt::format(", salt {}", sequence.salt));
    Pos evicted = 0;
    for (const auto& block : sequence.blocks) evicted = std::max(evicted, block.first - block.kept);
    if (evicted > 0) text += fmt::format(", up to {} rows of a layer evicted", evicted);
    text += '\n';
  }
  return text;
}

int show(const CacheFlags& flags) {
  const auto snapshot = kv::Snapshot::open(flags.file);
  if (!snapshot) return report(snapshot.error());
  if (flags.check) {
    if (auto ok = snapshot->verify(); !ok) return report(ok.error());
  }
  if (flags.json) {
    Json json = snapshot_json(*snapshot);
    json["checked"] = flags.check;
    return print_line(dump(json), kOk);
  }
  std::string text = snapshot_text(*snapshot);
  if (flags.check) text += "checked          every byte of every row\n";
  text.pop_back();
  return print_line(std::move(text), kOk);
}

}  // namespace

void add_cache(CLI::App& app, Run& run) {
  auto flags = std::make_shared<CacheFlags>();
  auto* sub = app.add_subcommand("cache", "What a file of --save-kv holds");
  sub->footer(
      "Examples:\n"
      "  stet generate \"Once upon a time\" -n 0 --save-kv story.kv\n"
      "  stet cache story.kv --check\n\n"
      "Shows the model and config that the rows belong to, how they are stored, and the sequences.");
  add_text(
      *sub, "FILE", [flags](std::string file) { flags->file = file_named("FILE", std::move(file)); }, "The file")
      ->required()
      ->type_name("FILE");
  sub->add_flag("--check", flags->check, "Read all rows and compare their digests, too");
  sub->add_flag("--json", flags->json, "One JSON object instead of text (docs/json.md)");
  sub->callback([flags, &run] { run = [flags] { return show(*flags); }; });
}

}  // namespace stet::cli
