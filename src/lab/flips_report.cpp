#include <fmt/format.h>

#include "lab/flips.hpp"
#include "report/escape.hpp"

namespace stet::lab {
namespace {

std::string name_of_row(const FlipRow& row, bool first) {
  if (first) return "f32";
  return row.dtype == DType::f32 ? row.kv + " cache" : fmt::format("{} weights", name_of(row.dtype));
}

// As text on one line; without a tokenizer the id.
std::string token_words(TokenId id, const std::string& text) {
  return text.empty() ? fmt::format("{}", id) : fmt::format("\"{}\"", report::line_of(text));
}

report::Table table_of(const FlipReport& report) {
  report::Table table;
  table.name = "flips";
  table.title = fmt::format("{}: {} tokens of prompt, {} greedy steps of f32, read by each type", report.model,
                            report.prompt, report.steps);
  table.columns = {{"type", "type", true},
                   {"largest distance", "max_logit_distance"},
                   {"mean", "mean_logit_distance"},
                   {"relative", "max_logit_relative"},
                   {"flips", "flips"},
                   {"first at step", "first_flip"},
                   {"f32's token", "was", true},
                   {"here", "is", true},
                   {"margin", "margin"},
                   {"cached = recomputed", "cached_equals_recomputed", true}};
  for (std::size_t i = 0; i < report.rows.size(); ++i) {
    const FlipRow& row = report.rows[i];
    const auto small = [](double v) { return report::Cell(fmt::format("{:.2e}", v), fmt::format("{}", v)); };
    std::vector<report::Cell> cells = {name_of_row(row, i == 0), small(row.largest), small(row.mean),
                                       small(row.relative), report::count(row.flips)};
    if (row.first) {
      cells.insert(cells.end(), {report::count(row.first->step),
                                 {token_words(row.first->was, row.first->was_text), fmt::format("{}", row.first->was)},
                                 {token_words(row.first->is, row.first->is_text), fmt::format("{}", row.first->is)},
                                 small(row.first->margin)});
    } else {
      cells.insert(cells.end(), {{"-", ""}, {"", ""}, {"", ""}, {"", ""}});
    }
    cells.push_back(row.equal()
                        ? report::Cell(fmt::format("yes, {} values", row.compared), "true")
                        : report::Cell(fmt::format("NO: {} of {} differ", row.differing, row.compared), "false"));
    table.rows.push_back(std::move(cells));
  }
  table.note =
      "Distances are the largest |logit - logit of f32| of a step. A flip is a step whose most likely token is not "
      "f32's; "
      "until the first one the greedy text is the same. Margin: by how much f32 preferred its token. Cached and "
      "recomputed: each step's logits from the cache, and from the whole prefix read anew, bit by bit.";
  return table;
}

// Weights and caches each in a plot of their own, so that a type has the same colour in both.
report::Plot plot_of(const FlipReport& report, bool caches) {
  report::Plot plot;
  plot.name = caches ? "cache_distance" : "weight_distance";
  plot.title = caches ? "Caches in reduced types: how far the logits are from those of f32"
                      : "Weights in reduced types: how far the logits are from those of f32";
  plot.x = {"new token", false};
  plot.y = {"largest |logit - logit of f32|", true};
  for (std::size_t i = 1; i < report.rows.size(); ++i) {
    const FlipRow& row = report.rows[i];
    if ((row.dtype == DType::f32) != caches) continue;
    report::Series curve;
    curve.label = caches ? row.kv : name_of(row.dtype);
    curve.label += row.first ? fmt::format(", flips at {}", row.first->step) : ", no flip";
    for (std::size_t step = 0; step < row.distances.size(); ++step) {
      curve.points.emplace_back(static_cast<double>(step + 1), row.distances[step]);
    }
    plot.series.push_back(std::move(curve));
  }
  plot.caption = "Every type reads the tokens that f32 made, so that each step asks the same question of all of them.";
  return plot;
}

}  // namespace

report::Report report_of(const FlipReport& report) {
  report::Report page;
  page.title = "stet eval --flips";
  std::size_t flipped = 0;
  for (const FlipRow& row : report.rows) flipped += row.first ? 1 : 0;
  page.summary = fmt::format("Of {} reduced types {} change{} a greedy token within {} steps. {}",
                             report.rows.size() - 1, flipped, flipped == 1 ? "s" : "", report.steps,
                             report.equal() ? "In every one of them cached and recomputed logits are equal to the bit."
                                            : "Cached and recomputed logits differ: that is a fault of Stet's.");
  report::Section section;
  section.title = "Reduced types beside f32";
  for (const bool caches : {false, true}) {
    report::Plot plot = plot_of(report, caches);
    if (!plot.series.empty()) section.plots.push_back(std::move(plot));
  }
  section.tables.push_back(table_of(report));
  if (!report.text.empty()) section.quotes.push_back({"What f32 writes", report.text});
  page.sections.push_back(std::move(section));
  return page;
}

}  // namespace stet::lab
