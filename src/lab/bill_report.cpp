// The bill for people: tables, sentences and a plot.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lab/bill.hpp"

namespace stet::lab {
namespace {

using report::Cell;
using report::grouped;

constexpr double kKib = 1024, kGib = kKib * kKib * kKib;

std::string exact(std::size_t bytes) {
  return fmt::format("{}", bytes);
}

Cell bytes_cell(std::size_t bytes) {
  return {binary_words(static_cast<double>(bytes)), exact(bytes)};
}

/// "8k" for 8192, else the number.
std::string tokens_words(Pos tokens) {
  return tokens >= 1024 && tokens % 1024 == 0 ? fmt::format("{}k", tokens / 1024) : fmt::format("{}", tokens);
}

std::string codecs_of(const BillCache& cache) {
  return cache.k == cache.v ? cache.k : fmt::format("{},{}", cache.k, cache.v);
}

std::string cache_words(const Bill& bill, const BillCache& cache) {
  const bool one_layout = std::all_of(bill.caches.begin(), bill.caches.end(),
                                      [&](const BillCache& other) { return other.layout == cache.layout; });
  return one_layout ? codecs_of(cache) : fmt::format("{}, {}", codecs_of(cache), name_of(cache.layout));
}

std::string past_words(const Bill& bill, bool past) {
  return past ? fmt::format("past its context of {}", grouped(bill.model.context)) : "";
}

std::string fit_words(const Bill& bill, const Fit& fit) {
  if (bill.model.weight_bytes > fit.room) return "the weights alone do not fit";
  return fit.any ? "any: its windows are full" : past_words(bill, fit.past_context);
}

std::string windows_words(const Bill& bill) {
  const auto& [layers, longest, sinks] = bill.windows;
  const std::string seen =
      sinks > 0 ? fmt::format("the first {} and the last {} tokens", grouped(sinks), grouped(longest - sinks))
                : fmt::format("the last {} tokens", grouped(longest));
  const auto all = static_cast<int>(bill.model.cache.layers.size());
  return fmt::format(
      "{} of {} layers see {}{}: contiguous they are rings and paged they give pages back, so that their bytes stop "
      "growing there (room for the window and a step is kept). A growing cache keeps all.",
      layers == all ? "All" : fmt::format("{}", layers), all, seen,
      layers == all ? "" : fmt::format(", the other {} everything", all - layers));
}

std::string depth_words(std::optional<Pos> tokens) {
  return tokens ? fmt::format("at {} tokens", grouped(*tokens)) : "nowhere, as windows end its growth before,";
}

std::vector<std::string> passing_words(const Bill& bill) {
  std::vector<std::string> lines;
  for (const Crossing& crossing : bill.passes_weights) {
    const BillCache& cache = bill.caches[crossing.cache];
    std::string line =
        fmt::format("A cache in {} of {} {} the weights{}", codecs_of(cache),
                    crossing.batch == 1 ? "1 sequence" : fmt::format("{} sequences", crossing.batch),
                    crossing.tokens ? "passes" : "never passes",
                    crossing.tokens ? fmt::format(" at {} tokens{}", grouped(*crossing.tokens),
                                                  *crossing.tokens > bill.model.context ? ", past its context" : "")
                                    : ": its windows are full before");
    if (bill.windows.layers > 0 && cache.layout == CacheMode::growing) line += " (growing)";
    if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(std::move(line));
  }
  for (std::string& line : lines) line += '.';
  return lines;
}

report::Series curve_of(const Bill& bill, std::size_t cache, int colour) {
  report::Series series;
  series.label = cache_words(bill, bill.caches[cache]);
  series.colour = colour;
  for (const BillRow& row : bill.curves[cache]) {
    series.points.emplace_back(static_cast<double>(row.context), static_cast<double>(row.total) / kGib);
  }
  return series;
}

report::Plot memory_plot(const Bill& bill) {
  report::Plot plot;
  const int batch = bill.rows.empty() ? 1 : bill.rows.front().batch;
  plot.name = "plan_memory";
  plot.title = "A cache grows with the context, the weights do not";
  plot.x = {"context, tokens", true, true, false};
  plot.y = {fmt::format("memory of {}, GiB", batch == 1 ? "one sequence" : fmt::format("{} sequences", batch)), true,
            false, false};
  for (std::size_t cache = 0; cache < bill.curves.size(); ++cache) {
    plot.series.push_back(curve_of(bill, cache, static_cast<int>(cache)));
  }
  report::Series weights;
  weights.label = fmt::format("weights, {}", name_of(bill.model.dtype));
  weights.style = report::Series::Style::model;
  weights.colour = static_cast<int>(bill.curves.size());
  for (const Pos context : {bill.curve_contexts.front(), bill.curve_contexts.back()}) {
    weights.points.emplace_back(static_cast<double>(context), static_cast<double>(bill.model.weight_bytes) / kGib);
  }
  plot.series.push_back(std::move(weights));
  plot.marks.push_back({static_cast<double>(bill.model.context), "its context"});
  plot.caption =
      "What the cache reserves, by the arithmetic that it reserves by: a straight line is a fixed number of bytes for "
      "each token, a bend is where windows are full.";
  return plot;
}

std::string summary_of(const Bill& bill) {
  if (bill.rows.empty()) return "";
  const BillRow& last = bill.rows.back();
  return fmt::format("{} of {}: {} of {} tokens take {} for the cache in {}, beside {} of weights in {}.",
                     bill.model.name, bill.model.attention,
                     last.batch == 1 ? "1 sequence" : fmt::format("{} sequences", last.batch), grouped(last.context),
                     binary_words(static_cast<double>(last.total)), cache_words(bill, bill.caches[last.cache]),
                     binary_words(static_cast<double>(bill.model.weight_bytes)), name_of(bill.model.dtype));
}

}  // namespace

std::string binary_words(double bytes) {
  if (bytes < kKib) return fmt::format("{:.0f} B", bytes);
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = bytes / kKib;
  std::size_t unit = 0;
  // A quarter of a GiB is named so: caches are compared in GiB.
  const auto limit = [&] { return unit == 1 ? kKib / 4 : kKib; };
  while (value >= limit() && unit + 1 < kUnits.size()) {
    value /= kKib;
    ++unit;
  }
  const int digits = value < 1 ? 3 : value < 10 ? 2 : value < 100 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, digits, kUnits[unit]);
}

report::Table rows_table(const Bill& bill) {
  report::Table table;
  table.name = "plan";
  table.columns = {{"cache", "kv", true},
                   {"layout", "layout", true},
                   {"context", "context"},
                   {"batch", "batch"},
                   {"a token", "bytes_per_token"},
                   {"its rows", "bytes_rows"},
                   {"a sequence", "bytes_per_sequence"},
                   {"in all", "bytes_total"},
                   {"with weights", "bytes_with_weights"},
                   {"", "note", true}};
  for (const BillRow& row : bill.rows) {
    const BillCache& cache = bill.caches[row.cache];
    table.rows.push_back(
        {codecs_of(cache), name_of(cache.layout), Cell(tokens_words(row.context), fmt::format("{}", row.context)),
         report::count(row.batch), bytes_cell(row.per_token), bytes_cell(row.rows), bytes_cell(row.per_sequence),
         bytes_cell(row.total), bytes_cell(row.total + bill.model.weight_bytes), past_words(bill, row.past_context)});
  }
  table.note =
      "its rows: what all sequences store. a sequence: the cells that it has room in (whole cells of 16\n"
      "tokens or pages). in all: cells and tables, what the cache reserves to the byte.";
  return table;
}

report::Table fits_table(const Bill& bill) {
  report::Table table;
  table.name = "plan_fits";
  table.title = fmt::format("What fits, {} of weights in {} included (activations are not)",
                            binary_words(static_cast<double>(bill.model.weight_bytes)), name_of(bill.model.dtype));
  table.columns = {{"room", "room_bytes"}, {"cache", "kv", true}, {"layout", "layout", true}, {"asked", "asked", true},
                   {"context", "context"}, {"batch", "batch"},    {"", "note", true}};
  for (const Fit& fit : bill.fits) {
    const BillCache& cache = bill.caches[fit.cache];
    table.rows.push_back({bytes_cell(fit.room), codecs_of(cache), name_of(cache.layout),
                          fit.asks_context ? "longest context" : "largest batch",
                          fit.any ? Cell("any") : Cell(grouped(fit.context), fmt::format("{}", fit.context)),
                          Cell(grouped(fit.batch), fmt::format("{}", fit.batch)), fit_words(bill, fit)});
  }
  return table;
}

std::vector<std::string> bill_notes(const Bill& bill) {
  std::vector<std::string> notes = passing_words(bill);
  if (bill.windows.layers > 0) notes.push_back(windows_words(bill));
  notes.push_back(fmt::format(
      "Attention is as much work as the rest of a step, in multiply-adds, {} (layers alone) and {} (with the "
      "output head).",
      depth_words(bill.attention_layers), depth_words(bill.attention_with_head)));
  return notes;
}

report::Report report_of(const Bill& bill) {
  report::Report out;
  out.title = "stet plan";
  out.summary = summary_of(bill);
  out.facts = {{"model", bill.model.name}};
  if (!bill.model.source.empty()) out.facts.emplace_back("its config.json", bill.model.source);
  out.facts.emplace_back("attention", bill.model.attention);
  out.facts.emplace_back("context", fmt::format("{} tokens", grouped(bill.model.context)));
  out.facts.emplace_back("parameters", grouped(bill.model.parameters));
  out.facts.emplace_back("weights", fmt::format("{} in {}", binary_words(static_cast<double>(bill.model.weight_bytes)),
                                                name_of(bill.model.dtype)));
  report::Section memory;
  memory.title = "Memory by context";
  memory.paragraphs = bill_notes(bill);
  memory.plots.push_back(memory_plot(bill));
  memory.tables.push_back(rows_table(bill));
  out.sections.push_back(std::move(memory));
  if (!bill.fits.empty()) {
    report::Section fits;
    fits.title = "What fits";
    fits.tables.push_back(fits_table(bill));
    out.sections.push_back(std::move(fits));
  }
  return out;
}

report::Table presets_table() {
  report::Table table;
  table.name = "presets";
  table.columns = {
      {"preset", "preset", true},          {"attention", "attention", true}, {"layers", "layers"},
      {"windows", "windows", true},        {"context", "context"},           {"parameters", "parameters"},
      {"a token, f16", "bytes_per_token"}, {"weights, f16", "weight_bytes"}, {"its config.json", "source", true}};
  for (const std::string& name : preset_names()) {
    const auto shape = preset(name, DType::f16);
    if (!shape) continue;
    BillOptions options;
    options.caches = {{KvCodecs{Codec::f16, Codec::f16}}};
    const auto one = bill(*shape, options);
    if (!one) continue;
    const Windows& windows = one->windows;
    table.rows.push_back({name, shape->attention, report::count(static_cast<long long>(shape->cache.layers.size())),
                          windows.layers == 0 ? "" : fmt::format("{} of {}", windows.layers, windows.longest),
                          Cell(tokens_words(shape->context), fmt::format("{}", shape->context)),
                          Cell(fmt::format("{:.3g} B", static_cast<double>(shape->parameters) / 1e9),
                               fmt::format("{}", shape->parameters)),
                          bytes_cell(one->rows.front().per_token), bytes_cell(shape->weight_bytes), shape->source});
  }
  return table;
}

}  // namespace stet::lab
