#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "lab/contexts.hpp"

namespace stet::lab {
namespace {

using report::Cell;
using report::Plot;
using report::Series;

// What the second write-up measured (float64, a laptop; the smaller and the larger of what it says), ms a step.
struct Published {
  Pos context = 0;
  const char *at_once = "", *by_rows = "", *cached = "";
};
constexpr Published kPublished[] = {
    {16, "2-4", "2.2-2.7", "0.65-1.3"},
    {128, "15-24", "17-19", "0.7-1.5"},
    {512, "125-185", "105-125", "0.9-1.7"},
    {2048, "1400-1700", "950-1060", "1.85-3.3"},
    {16384, "", "", "9.5-16"},
};

const Published* published_at(Pos context) {
  const auto* found = std::find_if(std::begin(kPublished), std::end(kPublished),
                                   [&](const Published& p) { return p.context == context; });
  return found == std::end(kPublished) ? nullptr : found;
}

Cell ms(std::optional<double> value) {
  if (!value) return {};
  return report::number(*value, *value < 1 ? 3 : *value < 100 ? 2 : 0);
}

Cell factor(std::optional<double> value) {
  if (!value) return {};
  return report::number(*value, *value < 100 ? 1 : 0);
}

std::string head_line(const ContextOptions& o) {
  return fmt::format("{} in {}, {} thread{}, seed {}; ms a step, the fastest of {} (cached: {})", o.model,
                     stet::name_of(o.dtype), o.threads, o.threads == 1 ? "" : "s", o.seed, o.tries, o.tries * 10);
}

report::Table steps_table(const ContextReport& report) {
  report::Table table;
  table.name = "contexts";
  table.title = head_line(report.options);
  table.columns = {{"context", "context"},
                   {"all scores at once", "at_once_ms"},
                   {fmt::format("{} rows of scores", kScoreRows), "by_rows_ms"},
                   {"with cache", "cached_ms"},
                   {"speed-up", "speed_up"},
                   {"by multiply-adds", "speed_up_counted"}};
  const bool trained = !report.options.trained.empty();
  const bool published = report.published_shape;
  if (trained) {
    table.columns.push_back({"trained", "trained_ms"});
    table.columns.push_back({"random", "random_ms"});
  }
  if (published) {
    table.columns.push_back({"published: at once", "published_at_once_ms"});
    table.columns.push_back({"128 rows", "published_by_rows_ms"});
    table.columns.push_back({"cache", "published_cached_ms"});
  }
  for (const ContextRow& row : report.rows) {
    std::vector<Cell> cells = {report::count(row.context), ms(row.at_once_ms),     ms(row.by_rows_ms),
                               ms(row.cached_ms),          factor(row.speed_up()), factor(row.counted())};
    if (trained) {
      cells.push_back(ms(row.trained_ms));
      cells.push_back(ms(row.random_ms));
    }
    if (published) {
      const Published none{}, *found = published_at(row.context), &p = found == nullptr ? none : *found;
      cells.insert(cells.end(), {p.at_once, p.by_rows, p.cached});
    }
    table.rows.push_back(std::move(cells));
  }
  table.note =
      "The context counts the new token. Speed-up: rows of scores over cached, and what counting\nmultiply-adds says.";
  if (published) table.note += "\nPublished: NumPy in float64 on a laptop.";
  return table;
}

report::Table split_table(const ContextReport& report) {
  report::Table table;
  table.name = "breakdown";
  table.title = report.options.most_uncached > 0 ? "Where a cached step's time goes, ms" : head_line(report.options);
  table.columns = {{"context", "context"}, {"weights", "weights_ms"}, {"attention", "attention_ms"},
                   {"head", "head_ms"},    {"rest", "rest_ms"},       {"attention's share", "attention_share"}};
  for (const ContextRow& row : report.rows) {
    table.rows.push_back({report::count(row.context), report::number(row.split.weights, 3),
                          report::number(row.split.attention, 3), report::number(row.split.head, 3),
                          report::number(row.split.rest, 3),
                          Cell(fmt::format("{:.0f} %", 100 * row.split.attention / row.cached_ms),
                               fmt::format("{}", row.split.attention / row.cached_ms))});
  }
  table.note = "Attention includes storing keys and values; the rest is norms, activations, embedding,\nbookkeeping.";
  return table;
}

// Multiply-adds in the time that the longest of some measured steps had for each of its own.
Series model_of(const std::vector<std::pair<double, double>>& madds, const Series& measured) {
  Series model{measured.label + ", by multiply-adds", Series::Style::model, {}, measured.colour};
  if (measured.points.empty()) return model;
  const std::size_t last = measured.points.size() - 1;
  for (std::size_t i = 0; i <= last; ++i) {
    model.points.emplace_back(madds[i].first, measured.points[last].second * madds[i].second / madds[last].second);
  }
  return model;
}

Plot steps_plot(const ContextReport& report) {
  Plot plot;
  plot.name = "step-by-context";
  plot.title = "A step without a cache recomputes its whole context; with one it reads it";
  plot.x = {"context, tokens", true, true, false};
  plot.y = {"time of one step, ms", true, false, false};
  Series at_once{"no cache, all scores", Series::Style::marked, {}, 0},
      by_rows{"no cache", Series::Style::marked, {}, 1}, cached{"with a cache", Series::Style::marked, {}, 3};
  std::vector<std::pair<double, double>> uncached_madds, cached_madds;
  for (const ContextRow& row : report.rows) {
    const auto x = static_cast<double>(row.context);
    if (row.at_once_ms) at_once.points.emplace_back(x, *row.at_once_ms);
    if (row.by_rows_ms) {
      by_rows.points.emplace_back(x, *row.by_rows_ms);
      uncached_madds.emplace_back(x, row.uncached_madds);
    }
    cached.points.emplace_back(x, row.cached_ms);
    cached_madds.emplace_back(x, row.cached_madds);
  }
  Series uncached_model = model_of(uncached_madds, by_rows), cached_model = model_of(cached_madds, cached);
  for (Series* series : {&at_once, &by_rows, &uncached_model, &cached, &cached_model}) {
    if (!series->points.empty()) plot.series.push_back(std::move(*series));
  }
  plot.caption = fmt::format(
      "No cache: {} rows of scores at a time. Dashed: what the step would take if each multiply-add cost what it does "
      "at "
      "the longest context measured. Points above: the step has a cost of its own beside the arithmetic; points below: "
      "what it reads is in the CPU's caches.",
      kScoreRows);
  return plot;
}

Plot split_plot(const ContextReport& report) {
  Plot plot;
  plot.name = "where-the-time-goes";
  plot.title = report.bend_measured ? "Attention overtakes the rest of a step" : "Where the time of a cached step goes";
  plot.x = {"context, tokens", true, true, false};
  plot.y = {"time within a cached step, ms", true, false, false};
  Series attention{"attention", Series::Style::marked, {}, 0}, others{"all else", Series::Style::marked, {}, 1};
  for (const ContextRow& row : report.rows) {
    attention.points.emplace_back(static_cast<double>(row.context), row.split.attention);
    others.points.emplace_back(static_cast<double>(row.context), row.split.others());
  }
  plot.series = {std::move(attention), std::move(others)};
  // A mark far beyond the contexts would only show emptiness.
  if (report.bend_layers <= static_cast<double>(report.rows.back().context)) {
    plot.marks.push_back({report.bend_layers, "equal multiply-adds, layers"});
  }
  if (report.bend_measured) plot.marks.push_back({*report.bend_measured, "measured"});
  plot.caption =
      fmt::format("Counted in multiply-adds both are equal at {:.0f} tokens, with the output head at {:.0f}.",
                  report.bend_layers, report.bend_with_head);
  return plot;
}

// A sentence, or nothing where nothing was compared.
std::string bits_words(int compared, int different) {
  if (compared == 0) return "";
  if (different == 0) return fmt::format(" All logits are the same bits: {} compared.", compared);
  return fmt::format(" NOT the same bits: {} of {}.", different, compared);
}

std::string bend_words(const ContextReport& report) {
  std::string words =
      fmt::format("Attention equals the rest of a step at {:.0f} tokens by multiply-adds ({:.0f} with the output head)",
                  report.bend_layers, report.bend_with_head);
  return words + (report.bend_measured ? fmt::format("; measured, it does at {:.0f}.", *report.bend_measured)
                                       : "; within these contexts it does not.");
}

}  // namespace

report::Report report_of(const ContextReport& contexts) {
  report::Report report;
  report.title = "stet race --by context";
  const auto last = std::find_if(contexts.rows.rbegin(), contexts.rows.rend(),
                                 [](const ContextRow& row) { return row.by_rows_ms.has_value(); });
  if (last != contexts.rows.rend()) {
    report.summary =
        fmt::format("At {} tokens a step takes {:.2f} ms with a cache and {:.1f} ms without: {:.0f} times. ",
                    last->context, last->cached_ms, *last->by_rows_ms, *last->speed_up());
  }
  report.summary += bend_words(contexts);
  const bool steps = contexts.options.most_uncached > 0;  // else only the breakdown was asked for
  report.summary += bits_words(contexts.compared, contexts.different);
  if (steps) {
    report.sections.push_back({"A step, by context", {}, {steps_plot(contexts)}, {steps_table(contexts)}, {}});
  }
  report.sections.push_back({"Where the time goes", {}, {split_plot(contexts)}, {split_table(contexts)}, {}});
  return report;
}

report::Report report_of(const MemoryReport& memory) {
  const MemoryOptions& o = memory.options;
  const auto mb = [](double bytes) { return Cell(fmt::format("{:.1f}", bytes / 1e6), fmt::format("{:.0f}", bytes)); };
  report::Table table;
  table.name = "memory";
  table.title = fmt::format("{} in {}, {} thread{}, context {}; MB", o.model, stet::name_of(o.dtype), o.threads,
                            o.threads == 1 ? "" : "s", o.context);
  table.columns = {{"what", "what", true},
                   {"time, ms", "ms"},
                   {"cache", "cache_bytes"},
                   {"activations", "activation_bytes"},
                   {"of them scores", "score_bytes"},
                   {"process grew by", "process_bytes"}};
  const bool published = memory.published_shape && o.context == 2048;
  if (published) table.columns.push_back({"published", "published_mb"});
  const bool skipped =
      std::any_of(memory.rows.begin(), memory.rows.end(), [](const auto& row) { return !row.skipped.empty(); });
  if (skipped) table.columns.push_back({"not run", "skipped", true});
  for (const MemoryRow& row : memory.rows) {
    std::vector<Cell> cells = {Cell(row.what, row.field)};
    if (!row.skipped.empty()) {
      cells.resize(table.columns.size());
      cells.back() = row.skipped;
    } else {
      cells.push_back(report::number(row.ms, row.ms < 10 ? 2 : 0));
      for (const std::size_t bytes : {row.cache_bytes, row.activation_bytes, row.score_bytes}) {
        cells.push_back(mb(static_cast<double>(bytes)));
      }
      cells.push_back(row.process_peak ? mb(static_cast<double>(*row.process_peak)) : Cell());
      if (published) {
        cells.emplace_back(row.field == "step_at_once"   ? "581"
                           : row.field == "step_by_rows" ? "61"
                           : row.field == "step_cached"  ? "16.8"
                                                         : "");
      }
    }
    cells.resize(table.columns.size());
    table.rows.push_back(std::move(cells));
  }
  table.note =
      "Scores are held as far as they are visible, in blocks of 512 positions: about half of a\nsquare. The results of "
      "blocks until they are merged count with them.";
  report::Report report;
  report.title = "stet race --memory";
  report.summary =
      fmt::format("What one more token takes at a context of {}, and what filling a cache up to there takes.{}",
                  o.context, bits_words(memory.compared, memory.different));
  report.sections.push_back({"Memory", {}, {}, {std::move(table)}, {}});
  return report;
}

}  // namespace stet::lab
