// What `stet limit` found, in words, as a table and as a page.
#include <fmt/format.h>

#include <algorithm>

#include "lab/limit.hpp"
#include "lab/words.hpp"

namespace stet::lab {
namespace {

using report::Cell;

Cell optional(double value, double scale, int digits) {
  return value > 0 ? report::number(value * scale, digits) : Cell("-", "");
}

// What stands in three columns of every row: all steps, those until the limit, and those past it.
std::vector<Cell> times(const std::vector<double>& seconds, Pos limit) {
  const auto n = static_cast<Pos>(seconds.size());
  return {optional(total_of(seconds, 0, n), 1, 4), optional(mean_of(seconds, 0, limit), 1e3, 3),
          optional(mean_of(seconds, limit, n), 1e3, 3)};
}

double signature(const BugReport& bug, std::string_view field) {
  const auto found =
      std::find_if(bug.signature.begin(), bug.signature.end(), [&](const auto& s) { return s.field == field; });
  return found == bug.signature.end() ? 0 : found->value;
}

std::string slide_words(const BugReport& slide) {
  return fmt::format("{:.0f} % of {:.0f} next tokens right; published: {:.0f} %", signature(slide, "agreement_percent"),
                     signature(slide, "steps"), signature(slide, "published_percent"));
}

std::string rotary_words(const LimitReport::Rotary& rotary) {
  return fmt::format("{} of {} logits differ from a mask over all rows", rotary.differing, rotary.compared);
}

std::string shown_on(const std::string& model, bool stand_in) {
  return stand_in ? fmt::format(" (on {})", model) : "";
}

std::vector<Cell> row(const char* way, const std::vector<double>& seconds, Pos limit, double published,
                      std::string gives) {
  const auto n = static_cast<Pos>(seconds.size());
  std::vector<Cell> cells = {way, n > 0 ? report::count(n) : Cell("-", ""),
                             n > 0 ? report::count(std::max<Pos>(0, n - limit)) : Cell("-", "")};
  for (Cell& cell : times(seconds, limit)) cells.push_back(std::move(cell));
  cells.push_back(optional(published, 1, 1));
  cells.emplace_back(std::move(gives));
  return cells;
}

std::vector<std::vector<Cell>> rows_of(const LimitReport& report) {
  std::vector<std::vector<Cell>> rows;
  // Stopping costs what the longest cached text cost until then.
  const auto longest = std::max_element(report.runs.begin(), report.runs.end(), [](const auto& a, const auto& b) {
    return std::pair(a.cached, a.tokens) < std::pair(b.cached, b.tokens);
  });
  if (longest != report.runs.end()) {
    std::vector<double> fitting = longest->seconds;
    fitting.resize(std::min(fitting.size(), static_cast<std::size_t>(report.fitting)));
    rows.push_back(row("stop", fitting, report.limit, 0, "ends where the window is full"));
  }
  for (const LimitRun& run : report.runs) {
    rows.push_back(row(run.cached ? "recompute the last window" : "no cache at all", run.seconds, report.limit,
                       run.published,
                       run.past > 0 ? "exact: a fresh forward for each token past it" : "exact: no token past it"));
  }
  rows.push_back(
      row("naive slide", report.slide_seconds, report.limit, 0,
          fmt::format("wrong: {}{}", slide_words(report.slide), shown_on(report.slide.model, report.slide.stand_in))));
  const auto& rotary = report.rotary;
  rows.push_back(row("rotary window", rotary.seconds, rotary.window, 0,
                     fmt::format("{}: {}{}", rotary.differing == 0 ? "exact" : "NOT exact", rotary_words(rotary),
                                 shown_on(rotary.model, rotary.stand_in))));
  return rows;
}

report::Series series_of(const std::string& label, const std::vector<double>& seconds) {
  report::Series series;
  series.label = label;
  for (std::size_t i = 0; i < seconds.size(); ++i)
    series.points.emplace_back(static_cast<double>(i + 1), seconds[i] * 1e3);
  return series;
}

report::Plot plot_of(const LimitReport& report) {
  report::Plot plot;
  plot.name = "limit_steps";
  plot.title = "Until the limit a cached step costs little; past it every token costs a whole window";
  plot.x = {"position, tokens", false, true};
  plot.y = {"time of a step, ms", false, false, true};
  const LimitRun *with = nullptr, *without = nullptr;
  for (const LimitRun& run : report.runs) {
    const LimitRun*& longest = run.cached ? with : without;
    if (longest == nullptr || run.tokens > longest->tokens) longest = &run;
  }
  if (without != nullptr) plot.series.push_back(series_of("no cache", without->seconds));
  if (with != nullptr) plot.series.push_back(series_of("cache, then recomputed", with->seconds));
  if (!report.slide_seconds.empty()) plot.series.push_back(series_of("naive slide (wrong)", report.slide_seconds));
  if (!report.rotary.stand_in) plot.series.push_back(series_of("rotary window", report.rotary.seconds));
  plot.marks = {{static_cast<double>(report.limit), "limit"}};
  plot.caption = fmt::format("Fastest of {} for each step, on {} thread{}.", report.tries, report.threads,
                             report.threads == 1 ? "" : "s");
  return plot;
}

}  // namespace

report::Table table_of(const LimitReport& report) {
  report::Table table;
  table.name = "limit";
  table.title = fmt::format("{}: a limit of {} tokens{}", report.model, report.limit,
                            report.limit == report.context ? "" : fmt::format(" (the context is {})", report.context));
  table.columns = {{"way", "way", true},
                   {"new tokens", "new_tokens"},
                   {"past the limit", "past"},
                   {"total, s", "total_s"},
                   {"ms a step until", "until_ms"},
                   {"past it", "past_ms"},
                   {"published, s", "published_s"},
                   {"what it gives", "gives", true}};
  table.rows = rows_of(report);
  table.note = fmt::format("{} {}; each step is the fastest of {}; {} thread{}.", "Texts begin with one token, greedy;",
                           name_of(report.dtype), report.tries, report.threads, report.threads == 1 ? "" : "s");
  return table;
}

std::vector<std::string> words_of(const LimitReport& report) {
  std::vector<std::string> lines;
  lines.push_back(
      fmt::format("recompute: {} of {} logits differ from those without a cache; past the limit each token is "
                  "a forward of the last {} tokens (stet generate --past-limit recompute)",
                  report.differing, report.compared, report.limit));
  const BugReport& slide = report.slide;
  lines.push_back(
      fmt::format("naive slide: over the right text {:.0f} of {:.0f} next tokens are the same ({:.0f} %), over "
                  "its own {:.0f} %; published: {:.0f} %; repeated 4-grams: {:.0f} % against {:.0f} %",
                  static_cast<double>(slide.agreeing), signature(slide, "steps"), signature(slide, "agreement_percent"),
                  signature(slide, "apart_percent"), signature(slide, "published_percent"),
                  slide.repetition_after * 100, slide.repetition_before * 100));
  const LimitReport::Rotary& rotary = report.rotary;
  lines.push_back(
      fmt::format("rotary window: on {} rows that leave a window of {} are dropped: {}; {} bytes of cache "
                  "instead of {}",
                  rotary.model, rotary.window, rotary_words(rotary), rotary.reserved, rotary.reserved_masked));
  return lines;
}

report::Report report_of(const LimitReport& report) {
  report::Report page;
  page.title = "stet limit";
  page.summary = fmt::format(
      "Past {} tokens a model with learned positions can stop, or recompute its last window for "
      "every token, which is exact and costs what having no cache costs.",
      report.limit);
  page.facts = {{"type", name_of(report.dtype)}, {"threads", fmt::format("{}", report.threads)}};
  report::Section section;
  section.title = "Four ways past the limit";
  section.paragraphs = words_of(report);
  section.plots = {plot_of(report)};
  section.tables = {table_of(report)};
  section.quotes = {{"past the limit, recomputed", text_or_ids(report.slide.text_before, report.slide.ids_before)},
                    {"past the limit, slid", text_or_ids(report.slide.text_after, report.slide.ids_after)}};
  page.sections = {std::move(section)};
  return page;
}

}  // namespace stet::lab
