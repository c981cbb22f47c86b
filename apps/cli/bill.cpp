#include "bill.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <system_error>

#include "commands.hpp"
#include "console.hpp"
#include "engine/loaded.hpp"
#include "json.hpp"
#include "plan.hpp"
#include "session.hpp"
#include "weights/checkpoint.hpp"

namespace stet::cli {
namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;
constexpr int kMostBatch = 65536;

// ---------------------------------------------------------------- lists

/// "8192", "8k", "1M"; none when it is no number of tokens or out of range.
std::optional<Pos> parse_tokens(std::string_view text) {
  Pos unit = 1;
  if (text.ends_with('k') || text.ends_with('K')) unit = 1024;
  if (text.ends_with('m') || text.ends_with('M')) unit = 1024 * 1024;
  if (unit > 1) text.remove_suffix(1);
  Pos tokens = 0;
  if (!parse_number(text, tokens) || tokens < 1 || tokens > kMostTokens / unit) return std::nullopt;
  return tokens * unit;
}

/// "16GiB", "1.5G" (powers of 1024), "80GB" (of 1000), "1000000"; none when it is no size of 1 to 2^62 bytes.
std::optional<std::size_t> parse_size(std::string_view text) {
  const auto end = std::min(text.find_first_not_of("0123456789."), text.size());
  std::string unit(text.substr(end));
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
  double scale = 1;
  if (!unit.empty()) {
    const auto power = std::string_view("KMGT").find(unit[0]);
    const std::string rest = unit.substr(1);
    if (unit == "B") {
      unit.clear();
    } else if (power == std::string_view::npos || (!rest.empty() && rest != "IB" && rest != "B")) {
      return std::nullopt;
    } else {
      scale = std::pow(rest == "B" ? 1000.0 : 1024.0, static_cast<double>(power + 1));
    }
  }
  double number = 0;
  if (!parse_number(text.substr(0, end), number)) return std::nullopt;
  const double bytes = number * scale;
  if (!(bytes >= 1 && bytes <= 0x1p62)) return std::nullopt;
  return static_cast<std::size_t>(bytes);
}

std::optional<CacheMode> parse_layout(std::string_view text) {
  for (const CacheMode mode : {CacheMode::contiguous, CacheMode::growing, CacheMode::paged, CacheMode::none}) {
    if (text == name_of(mode)) return mode;
  }
  return std::nullopt;
}

/// A --kv without LAYERS begins a cache, one with LAYERS changes these layers of the cache before it.
void add_kv(BillFlags& flags, const std::string& text) {
  if (std::count(text.begin(), text.end(), ',') > 1) {
    throw CLI::ValidationError(
        "--kv",
        fmt::format("must be [LAYERS:]K[,V]: a comma parts K from V, several caches are several --kv, not '{}'", text));
  }
  const KvCodecs kv = parse_kv(text);
  auto& caches = flags.options.caches;
  if (!flags.kv_given) caches = {{}};
  const bool begins = kv.last < 0 && (flags.kv_given && !caches.back().empty());
  if (begins) caches.emplace_back();
  caches.back().push_back(kv);
  flags.kv_given = true;
}

// ---------------------------------------------------------------- the model

struct Named {
  lab::Shape shape;
  bool local = false;
};

bool is_model_folder(const std::string& name) {
  std::error_code ignored;
  return std::filesystem::exists(std::filesystem::path(name) / "config.json", ignored);
}

/// "gpt2/config.json" is the model "gpt2".
std::string without_config(const std::string& name) {
  const std::filesystem::path path(name);
  std::error_code ignored;
  if (path.filename() != "config.json" || !std::filesystem::is_regular_file(path, ignored)) return name;
  return path.has_parent_path() ? path.parent_path().string() : ".";
}

bool is_preset(const std::string& name) {
  const auto names = lab::preset_names();
  return !is_model_folder(name) && std::find(names.begin(), names.end(), name) != names.end();
}

Result<Named> find_model(const std::string& name, const EngineOptions& engine, bool dtype_given) {
  if (is_preset(name)) {
    auto shape = lab::preset(name, dtype_given ? engine.dtype : DType::f16);
    if (!shape) return pass(shape);
    return Named{std::move(*shape), false};
  }
  std::error_code ignored;
  if (!weights::is_random(name) && !std::filesystem::exists(name, ignored)) {
    const auto like = lab::names_like(name, lab::preset_names());
    std::string words;
    for (const auto& other : like) words += (words.empty() ? "; near it: " : ", ") + other;
    return fail(Code::not_found, fmt::format("{}: neither a model's folder nor a preset{} (stet plan --list has all)",
                                             printable(name), words));
  }
  auto config = engine::config_of(name);
  if (!config) return pass(config);
  return Named{lab::shape_of(*config, name, engine.dtype), true};
}

/// What stores the type of the weights, as published models do; beside int8 and int4 weights f16.
KvCodecs as_published(DType weights) {
  switch (weights) {
    case DType::f64:
      return {Codec::f64, Codec::f64};
    case DType::f32:
      return {Codec::f32, Codec::f32};
    case DType::bf16:
      return {Codec::bf16, Codec::bf16};
    default:
      return {Codec::f16, Codec::f16};
  }
}

/// The engine's options of the first row.
EngineOptions first_row(const BillFlags& flags, const lab::BillOptions& options) {
  EngineOptions engine;
  engine.dtype = flags.model.engine.dtype;
  engine.cache = options.layouts.front();
  if (engine.cache == CacheMode::paged) {
    engine.page_tokens = options.page_tokens;
    engine.pool_tokens = options.pool_tokens;
  }
  engine.kv = options.caches.front();
  engine.span = options.span;
  engine.max_seqs = options.batches.front();
  engine.max_len = options.contexts.empty() ? 0 : options.contexts.front();
  return engine;
}

// ---------------------------------------------------------------- what is printed

Json tokens_or_null(std::optional<Pos> tokens) {
  return tokens ? Json(*tokens) : Json(nullptr);
}

Json row_json(const lab::Bill& bill, const lab::BillRow& row, Pos page_tokens) {
  const lab::BillCache& cache = bill.caches[row.cache];
  Json json = {{"context", row.context},
               {"batch", row.batch},
               {"kv_k", cache.k},
               {"kv_v", cache.v},
               {"layout", name_of(cache.layout)},
               {"bytes_per_token", row.per_token},
               {"bytes_per_sequence", row.per_sequence},
               {"bytes_total", row.total},
               {"bytes_rows", row.rows},
               {"bytes_cells", row.cells},
               {"bytes_with_weights", row.total + bill.model.weight_bytes},
               {"past_context", row.past_context}};
  if (cache.layout == CacheMode::paged) json["page_tokens"] = page_tokens;
  return json;
}

Json fit_json(const lab::Bill& bill, const lab::Fit& fit) {
  const lab::BillCache& cache = bill.caches[fit.cache];
  return {{"room_bytes", fit.room},
          {"kv_k", cache.k},
          {"kv_v", cache.v},
          {"layout", name_of(cache.layout)},
          {"asked", fit.asks_context ? "context" : "batch"},
          {"context", fit.any ? Json(nullptr) : Json(fit.context)},
          {"batch", fit.batch},
          {"any", fit.any},
          {"past_context", fit.past_context}};
}

void add_bill_json(Json& json, const lab::Bill& bill, Pos page_tokens) {
  const lab::Shape& model = bill.model;
  if (!model.source.empty()) json["source"] = model.source;
  json["attention"] = model.attention;
  json["model_context"] = model.context;
  json["parameters"] = model.parameters;
  json["dtype"] = name_of(model.dtype);
  json["weight_bytes"] = model.weight_bytes;
  json["rows"] = Json::array();
  for (const auto& row : bill.rows) json["rows"].push_back(row_json(bill, row, page_tokens));
  json["crossings"] = {{"attention_layers", tokens_or_null(bill.attention_layers)},
                       {"attention_with_head", tokens_or_null(bill.attention_with_head)},
                       {"cache_passes_weights", Json::array()}};
  for (const auto& crossing : bill.passes_weights) {
    const lab::BillCache& cache = bill.caches[crossing.cache];
    json["crossings"]["cache_passes_weights"].push_back({{"kv_k", cache.k},
                                                         {"kv_v", cache.v},
                                                         {"layout", name_of(cache.layout)},
                                                         {"batch", crossing.batch},
                                                         {"context", tokens_or_null(crossing.tokens)}});
  }
  json["windows"] = {{"layers", bill.windows.layers}, {"tokens", bill.windows.longest}};
  json["what_fits"] = Json::array();
  for (const auto& fit : bill.fits) json["what_fits"].push_back(fit_json(bill, fit));
}

std::string bill_text(const lab::Bill& bill) {
  std::string text;
  const auto facts = lab::report_of(bill).facts;
  for (const auto& [label, value] : facts) text += fmt::format("{:<18}{}\n", label, printable(value));
  text += '\n' + report::text_of(lab::rows_table(bill));
  if (!bill.fits.empty()) text += '\n' + report::text_of(lab::fits_table(bill));
  text += '\n';
  for (const auto& note : lab::bill_notes(bill)) text += note + '\n';
  return text;
}

int print(std::string text) {
  text.pop_back();
  return print_line(std::move(text), kOk);
}

int print_presets(bool json) {
  const auto table = lab::presets_table();
  if (!json) return print(report::text_of(table));
  Json out = {{"schema", kSchema}, {"presets", Json::array()}};
  for (const std::string& name : lab::preset_names()) {
    const auto shape = lab::preset(name, DType::f16);
    if (!shape) return report(shape.error());
    lab::BillOptions options;
    options.caches = {{as_published(DType::f16)}};
    const auto bill = lab::bill(*shape, options);
    if (!bill) return report(bill.error());
    out["presets"].push_back({{"preset", name},
                              {"source", shape->source},
                              {"attention", shape->attention},
                              {"layers", shape->cache.layers.size()},
                              {"windows", {{"layers", bill->windows.layers}, {"tokens", bill->windows.longest}}},
                              {"model_context", shape->context},
                              {"parameters", shape->parameters},
                              {"bytes_per_token", bill->rows.front().per_token},
                              {"weight_bytes", shape->weight_bytes}});
  }
  return print_line(dump(out), kOk);
}

}  // namespace

void add_bill_flags(CLI::App& app, BillFlags& flags) {
  auto& options = flags.options;
  auto set_model = [&flags](std::string text) {
    if (text.empty()) throw CLI::ValidationError("-m", "must name a model, not ''");
    flags.model.model = std::move(text);
  };
  add_text(app, "-m,--model", set_model,
           "A preset of --list; else a Hugging Face folder of GPT-2, Llama, Mistral or Qwen2, or random:gpt2, "
           "random:llama-tiny, ... A folder goes before a preset of its name (default: the bundled character model)")
      ->type_name("PRESET|PATH");
  app.add_flag("--list", flags.list, "Instead: the presets, with the bytes of a token");
  add_dtype_flag(app, flags.model);
  app.get_option("--dtype")->description(
      "Type of the weights; arithmetic is f64 for f64, else f32 (default: f32, of presets f16)");
  const std::string tokens = "tokens from 1 to 2^40 with commas between, k for 1024";
  add_list(
      app, "--context", tokens, "Tokens that one sequence may hold: 1k,8k,128k (default: the model's context)",
      [&options] { options.contexts.clear(); },
      [&options](std::string_view text) {
        const auto context = parse_tokens(text);
        if (context) options.contexts.push_back(*context);
        return context.has_value();
      });
  add_list(
      app, "--batch", fmt::format("whole numbers from 1 to {} with commas between", kMostBatch),
      "Sequences at a time: 1,8,32 (default: 1)", [&options] { options.batches.clear(); },
      [&options](std::string_view text) {
        int batch = 0;
        if (!parse_number(text, batch) || batch < 1 || batch > kMostBatch) return false;
        options.batches.push_back(batch);
        return true;
      });
  add_text(
      app, "--kv", [&flags](const std::string& text) { add_kv(flags, text); },
      "How keys and values are stored, of f64, f32, bf16, f16, int8, int4. Several times for several caches; one with "
      "LAYERS changes these layers of the cache before it (--kv int8 --kv 0-1:f32 is one cache) (default: the type of "
      "the arithmetic; of presets that of the weights, f16 beside int8 and int4)")
      ->type_name("[LAYERS:]K[,V]")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_list(
      app, "--cache", "layouts of contiguous, growing, paged, none with commas between",
      "Where keys and values are kept (default: contiguous)", [&options] { options.layouts.clear(); },
      [&options](std::string_view text) {
        const auto layout = parse_layout(text);
        if (layout) options.layouts.push_back(*layout);
        return layout.has_value();
      });
  add_page_flags(app, flags.model.engine);
  add_list(
      app, "--fit", "sizes like 16GiB, 1.5G or 80GB with commas between",
      "Also tells the longest context of each batch, and the largest batch of each context, that fit into so much "
      "memory, weights included. GiB and G are of 1024, GB of 1000",
      [&options] { options.rooms.clear(); },
      [&options](std::string_view text) {
        const auto size = parse_size(text);
        if (size) options.rooms.push_back(*size);
        return size.has_value();
      });
}

int run_bill(const BillFlags& flags) {
  if (flags.list) return print_presets(flags.json);
  const auto folder = ReportFolder::open(flags.report);
  if (!folder) return report(folder.error());
  const std::string name = without_config(model_of(flags.model));
  const auto model = find_model(name, flags.model.engine, flags.dtype_given);
  if (!model) return report(model.error());
  lab::BillOptions options = flags.options;
  options.page_tokens = flags.model.engine.page_tokens;
  options.pool_tokens = flags.model.engine.pool_tokens;
  options.span = flags.model.engine.span;
  if (!model->local) {
    for (auto& kv : options.caches) kv.insert(kv.begin(), as_published(model->shape.dtype));
  }
  const auto bill = lab::bill(model->shape, options);
  if (!bill) return report(bill.error());

  // What this program would hold itself: the plan of the first row, if the model can be run so.
  std::optional<ModelInfo> info;
  const EngineOptions engine = first_row(flags, options);
  if (model->local && !bill->rows.front().past_context) {
    auto inspected = Engine::inspect(name, engine);
    if (!inspected) return report(inspected.error());
    info = std::move(*inspected);
  }
  Json json = {{"schema", kSchema}, {"model", model->shape.name}};
  if (info) json.update(plan_json(*info, engine));
  add_bill_json(json, *bill, options.page_tokens);
  const bool one = info && bill->rows.size() == 1;
  const std::string text =
      flags.json ? dump(json) + '\n' : (one ? plan_text(*info, engine) + '\n' : std::string()) + bill_text(*bill);
  if (const int code = print(text); code != kOk || !folder->wanted()) return code;
  auto page = lab::report_of(*bill);
  page.json = dump(json);
  return folder->write(std::move(page), model->shape.name);
}

}  // namespace stet::cli
