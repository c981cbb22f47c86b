#include "bill.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>

#include "commands.hpp"
#include "console.hpp"
#include "engine/loaded.hpp"
#include "interrupt.hpp"
#include "json.hpp"
#include "plan.hpp"
#include "session.hpp"
#include "weights/checkpoint.hpp"

namespace stet::cli {
namespace {

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

int run_bill(const BillFlags& flags) {
  if (flags.list) return print_presets(flags.json);
  if (!flags.report.folder.empty()) catch_interrupts();  // without a report there is nothing to end in good order
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
