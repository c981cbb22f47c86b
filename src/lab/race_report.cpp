#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/race.hpp"

namespace stet::lab {
namespace {

using report::Cell;
using report::Plot;
using report::Series;

constexpr Form kInOrder[] = {Form::at_once, Form::by_rows, Form::growing, Form::contiguous, Form::paged};

std::string words_of(Form form, const RaceOptions& o) {
  if (form == Form::by_rows) return fmt::format("no cache, {} rows of scores", kScoreRows);
  if (form == Form::paged) return fmt::format("paged cache, pages of {}", o.page_tokens);
  return name_of(form);
}

Cell mib(double bytes) {
  return {fmt::format("{:.1f}", bytes / (1024.0 * 1024.0)), fmt::format("{:.0f}", bytes)};
}

Cell ms(double value) {
  if (!std::isfinite(value)) return {};
  return report::number(value, value < 10 ? 2 : 1);
}

// Three digits that count, and no powers of ten.
std::string seconds(double ms) {
  const double s = ms / 1e3;
  return fmt::format("{:.{}f}", s, s >= 10 ? 1 : s >= 1 ? 2 : s >= 0.1 ? 3 : s >= 0.01 ? 4 : 5);
}

std::string tokens(Pos n) {
  return fmt::format("{} token{}", n, n == 1 ? "" : "s");
}

// A table with a row for each prompt and form: what these are, then the cells of `rest`.
template <class F>
report::Table table_of(const RaceReport& race, const char* name, const std::vector<report::Column>& columns,
                       const F& rest) {
  report::Table table;
  table.name = name;
  table.columns = {{"prompt", "prompt"}, {"how", "form", true}};
  table.columns.insert(table.columns.end(), columns.begin(), columns.end());
  for (const Pos prompt : race.options.prompts) {
    for (const Form form : kInOrder) {
      const RaceRun& run = race.run_of(form, prompt);
      std::vector<Cell> cells = {report::count(prompt), Cell(words_of(form, race.options), field_of(form))};
      for (Cell& cell : rest(run)) cells.push_back(std::move(cell));
      table.rows.push_back(std::move(cells));
    }
  }
  return table;
}

report::Table times(const RaceReport& race) {
  const std::vector<report::Column> columns = {{"total, s", "total_ms"},
                                               {"speed-up", "speed_up"},
                                               {"TTFT, ms", "ttft_ms"},
                                               {"TPOT, ms", "tpot_ms"},
                                               {"p99, ms", "tpot_p99_ms"}};
  report::Table table = table_of(race, "race", columns, [&](const RaceRun& run) {
    const double slowest = race.run_of(Form::at_once, run.prompt).total_ms;
    return std::vector<Cell>{
        Cell(fmt::format("{}{}", run.estimated ? "~" : "", seconds(run.total_ms)), fmt::format("{}", run.total_ms)),
        report::number(slowest / run.total_ms, 2), ms(run.ttft_ms()), ms(run.tpot_ms(0.5)), ms(run.tpot_ms(0.99))};
  });
  table.title = fmt::format("{} in {}, {} thread{}, seed {}; {} new tokens", race.options.model,
                            stet::name_of(race.options.dtype), race.options.threads,
                            race.options.threads == 1 ? "" : "s", race.options.seed, race.options.new_tokens);
  table.note =
      "Total and speed-up include the prompt; TTFT is the time to the first token, TPOT the\n"
      "median of each that follows.";
  if (race.options.every > 1) {
    table.note += fmt::format("\n~: without a cache each {}th step was measured, the others lie on lines between.",
                              race.options.every);
  }
  return table;
}

report::Table memory(const RaceReport& race) {
  const std::vector<report::Column> columns = {{"cache", "cache_bytes"},
                                               {"activations", "activation_bytes"},
                                               {"process", "process_peak_bytes"},
                                               {"copied", "copied_bytes"},
                                               {"by formula", "copied_formula_bytes"}};
  report::Table table = table_of(race, "memory", columns, [&](const RaceRun& run) {
    const bool growing = run.form == Form::growing;
    return std::vector<Cell>{is_cached(run.form) ? mib(static_cast<double>(run.cache_bytes)) : Cell(),
                             mib(static_cast<double>(run.activation_bytes)),
                             run.process_peak ? mib(static_cast<double>(*run.process_peak)) : Cell(),
                             growing ? mib(static_cast<double>(run.copied)) : Cell(),
                             growing ? mib(run.copied_formula) : Cell()};
  });
  table.title = "Memory at its peak, MiB";
  table.note =
      "The process has the weights too. Copied in all: whole cells of 16 tokens, by formula\n"
      "bytes/token x (n1^2 - n0^2) / 2.";
  return table;
}

std::string verdict(const RaceReport& race) {
  int compared = 0, different = 0;
  for (const RaceRun& run : race.runs) {
    compared += run.compared;
    different += run.different;
  }
  return race.equal()
             ? fmt::format("All paths produced the same ids and the same bits: {} steps compared, 0 different.",
                           compared)
             : fmt::format("NOT the same bits: {} of {} steps differ.", different, compared);
}

template <class F>
Series curve(Form form, const RaceReport& race, Pos prompt, const F& value) {
  Series series;
  series.label = words_of(form, race.options);
  series.colour = static_cast<int>(form);
  const RaceRun& run = race.run_of(form, prompt);
  for (std::size_t i = 0; i < run.step_ms.size(); ++i) {
    const double y = value(run, i);
    if (std::isfinite(y)) series.points.emplace_back(static_cast<double>(i + 1), y);
  }
  return series;
}

// Of one prompt: the latency of each token behind the first, and what all have taken so far.
std::vector<Plot> plots_of(const RaceReport& race, Pos prompt) {
  Plot latency, cumulative;
  latency.name = fmt::format("latency-{}", prompt);
  latency.title = "Without a cache each token costs more than the one before; with one they cost the same";
  latency.x.label = cumulative.x.label = "new token";
  latency.y = {"time of the token, ms", true, false, false};
  latency.caption =
      fmt::format("Prompt of {}. The first new token, which has the prompt's cost, is left out.", tokens(prompt));
  cumulative.name = fmt::format("cumulative-{}", prompt);
  cumulative.title = "The time until each token, the prompt included";
  cumulative.y = {"time since the start, s", false, false, true};
  cumulative.caption = fmt::format(
      "Prompt of {}. Curves begin at the time of the first token: the prompt costs the same with and without a "
      "cache.",
      tokens(prompt));
  for (const Form form : kInOrder) {
    latency.series.push_back(curve(
        form, race, prompt, [](const RaceRun& run, std::size_t i) { return i == 0 ? std::nan("") : run.step_ms[i]; }));
    double sum = 0, last = 0;
    std::size_t last_at = 0;
    cumulative.series.push_back(curve(form, race, prompt, [&](const RaceRun& run, std::size_t i) {
      if (!std::isfinite(run.step_ms[i])) return std::nan("");
      const auto between = static_cast<double>(i) - static_cast<double>(last_at) - 1;
      if (i > 0) sum += std::max(0.0, between) * (last + run.step_ms[i]) / 2;  // steps that were not measured
      sum += run.step_ms[i];
      last = run.step_ms[i];
      last_at = i;
      return sum / 1e3;
    }));
  }
  return {latency, cumulative};
}

// What each cache keeps from others while the text grows: a place from the start, or pages one by one.
Plot occupancy(const RaceReport& race, Pos prompt) {
  Plot plot;
  plot.name = fmt::format("occupancy-{}", prompt);
  plot.title = "A place is held from the start, pages are taken as the text grows";
  plot.x.label = "new token";
  plot.y = {"memory that the sequence keeps from others, MiB", false, false, true};
  plot.caption =
      "Held: what is reserved for the sequence. A growing cache is copied to a second place in each step, so it needs "
      "two. "
      "Pages: those in use, whole ones.";
  for (const Form form : {Form::growing, Form::contiguous, Form::paged}) {
    Series series;
    series.label = words_of(form, race.options);
    series.colour = static_cast<int>(form);
    series.style = Series::Style::steps;
    const RaceRun& run = race.run_of(form, prompt);
    for (std::size_t i = 0; i < run.live_bytes.size(); ++i) {
      const std::size_t bytes = form == Form::paged ? run.live_bytes[i] : run.cache_bytes;
      series.points.emplace_back(static_cast<double>(i + 1), static_cast<double>(bytes) / (1024.0 * 1024.0));
    }
    plot.series.push_back(std::move(series));
  }
  return plot;
}

Plot speed_up(const RaceReport& race) {
  Plot plot;
  plot.name = "speed-up";
  plot.title = "The longer the prompt, the more a cache saves";
  plot.x = {"prompt, tokens", true, true, false};
  plot.y = {"total time without a cache / with", false, false, true};
  plot.caption =
      fmt::format("{} new tokens, the prompt included on both sides; all scores at once = 1.", race.options.new_tokens);
  for (const Form form : {Form::by_rows, Form::growing, Form::contiguous, Form::paged}) {
    Series series;
    series.label = words_of(form, race.options);
    series.colour = static_cast<int>(form);
    series.style = Series::Style::marked;
    for (const Pos prompt : race.options.prompts) {
      series.points.emplace_back(static_cast<double>(prompt),
                                 race.run_of(Form::at_once, prompt).total_ms / race.run_of(form, prompt).total_ms);
    }
    plot.series.push_back(std::move(series));
  }
  return plot;
}

}  // namespace

report::Report report_of(const RaceReport& race) {
  report::Report report;
  report.title = "stet race";
  const Pos longest = *std::max_element(race.options.prompts.begin(), race.options.prompts.end());
  const RaceRun &slow = race.run_of(Form::at_once, longest), &fast = race.run_of(Form::contiguous, longest);
  report.summary = fmt::format(
      "Behind a prompt of {}, {} new ones take {}{} s without a cache and {} s with one that is there from the start: "
      "{:.1f} times. {}",
      tokens(longest), race.options.new_tokens, slow.estimated ? "about " : "", seconds(slow.total_ms),
      seconds(fast.total_ms), slow.total_ms / fast.total_ms, verdict(race));
  report::Section table{"The race", {}, {}, {times(race), memory(race)}, {}};
  if (!race.why_smaller.empty()) table.paragraphs.push_back(race.why_smaller);
  report.sections.push_back(std::move(table));
  if (race.options.prompts.size() > 1) report.sections.push_back({"By prompt", {}, {speed_up(race)}, {}, {}});
  report.sections.push_back(
      {fmt::format("Token by token, behind a prompt of {}", longest), {}, plots_of(race, longest), {}, {}});
  report.sections.push_back({"The cache", {}, {occupancy(race, longest)}, {}, {}});
  return report;
}

}  // namespace stet::lab
