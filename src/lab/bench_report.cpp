#include "lab/bench_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace stet::lab {
namespace {

using report::Plot;
using report::Series;

bool decodes(const BenchRow& row) {
  return row.at.test.kind == BenchTest::Kind::decode;
}

double gflop_s(const BenchRow& row) {
  return row.work.operations() / row.ms / 1e6;
}

double intensity(const BenchRow& row) {
  return row.work.operations() / row.work.bytes();
}

report::Table table_of(const BenchReport& report) {
  report::Table table;
  table.name = "bench";
  table.title = "Each test beside the least time that this machine needs for it";
  table.columns = {{"test", "test", true},
                   {"weights", "dtype", true},
                   {"cache", "kv", true},
                   {"depth", "depth"},
                   {"batch", "batch"},
                   {"tokens/s", "tok_s"},
                   {"time, ms", "ms"},
                   {"bound, ms", "bound_ms"},
                   {"reached, %", "of_bound_percent"},
                   {"GB/s", "gb_s"},
                   {"at most, GB/s", "read_gb_s"},
                   {"GFLOP/s", "gflop_s"},
                   {"at most, GFLOP/s", "peak_gflop_s"}};
  for (const BenchRow& row : report.rows) {
    table.rows.push_back({name_of(row.at.test), name_of(row.dtype), row.kv, report::count(row.at.depth),
                          report::count(row.at.batch), report::number(row.tok_s(), 1), report::number(row.ms, 3),
                          report::number(row.bound(), 3), report::number(row.of_bound() * 100, 1),
                          report::number(row.work.bytes() / row.ms / 1e6, 2), report::number(row.limits.read_gb_s, 2),
                          report::number(gflop_s(row), 1), report::number(row.limits.peak_gflop_s, 1)});
  }
  table.note =
      "ppN reads a prompt of N tokens in one step, tgN decodes N tokens one step at a time; depth counts the tokens "
      "that "
      "each sequence holds before. The bound is the larger of reading the step's bytes and computing its operations at "
      "the rates measured before and after the row.";
  return table;
}

// Rows against what they are bound by: along the slope by reading, along the flat roof by computing (Williams, Waterman
// and Patterson, "Roofline", 2009).
Plot roofline(const BenchReport& report) {
  Plot plot;
  plot.name = "roofline";
  plot.title = "What each step reaches, below what this machine could do at most";
  plot.x = {"operations for each byte that a step must read", true};
  plot.y = {"GFLOP/s", true};
  double least = intensity(report.rows.front()), most = least;
  std::map<DType, Limits> roofs;
  std::map<std::pair<DType, bool>, std::vector<std::pair<double, double>>> points;
  for (const BenchRow& row : report.rows) {
    least = std::min(least, intensity(row));
    most = std::max(most, intensity(row));
    Limits& roof = roofs[row.dtype];
    roof.read_gb_s = std::max(roof.read_gb_s, row.limits.read_gb_s);
    roof.peak_gflop_s = std::max(roof.peak_gflop_s, row.limits.peak_gflop_s);
    points[{row.dtype, decodes(row)}].emplace_back(intensity(row), gflop_s(row));
  }
  int colour = 0;
  for (const auto& [dtype, roof] : roofs) {
    const double knee = roof.peak_gflop_s / roof.read_gb_s, low = least / 2, high = std::max(most, knee) * 2;
    Series line{fmt::format("{}: the machine's limit", name_of(dtype)), Series::Style::model, {}, colour};
    for (const double x : {low, std::max(knee, low), high}) {
      line.points.emplace_back(x, std::min(roof.peak_gflop_s, roof.read_gb_s * x));
    }
    plot.series.push_back(std::move(line));
    ++colour;
  }
  for (auto& [which, at] : points) {
    std::sort(at.begin(), at.end());
    const auto number = static_cast<int>(std::distance(roofs.begin(), roofs.find(which.first)));
    const int shape = which.second ? number : number + static_cast<int>(roofs.size());
    plot.series.push_back({fmt::format("{}, {}", name_of(which.first), which.second ? "decode" : "prefill"),
                           Series::Style::points, at, shape});
  }
  plot.caption =
      "A point on the dashed line could not be faster: on the slope the memory gives no more bytes, under the flat "
      "roof "
      "the cores compute no faster. Both limits were measured in this run, each by the threads that did the work.";
  return plot;
}

// Decode rows that agree in all but one thing, as curves along that thing.
std::vector<Series> curves_of(const BenchReport& report, double (*x)(const BenchRow&), double (*y)(const BenchRow&),
                              std::string (*label)(const BenchRow&)) {
  std::vector<Series> curves;
  for (const BenchRow& row : report.rows) {
    if (!decodes(row)) continue;
    const std::string name = label(row);
    auto at = std::find_if(curves.begin(), curves.end(), [&](const Series& s) { return s.label == name; });
    if (at == curves.end()) at = curves.insert(at, {name, Series::Style::marked, {}});
    at->points.emplace_back(x(row), y(row));
  }
  for (Series& curve : curves) std::sort(curve.points.begin(), curve.points.end());
  return curves;
}

// "f32", or "f32, int8 cache" where the cache is not simply that.
std::string types_of(const BenchRow& row) {
  const std::string type = name_of(row.dtype);
  return row.kv == type || row.kv == "f32" ? type : fmt::format("{}, {} cache", type, row.kv);
}

Plot by_depth(const BenchReport& report) {
  Plot plot;
  plot.name = "decode_by_depth";
  plot.title = "Decoding: speed at the depth of the sequences";
  plot.x = {"tokens in each sequence before", false, true, true};
  plot.y = {"tokens a second, all sequences together", false, false, true};
  plot.series = curves_of(
      report, [](const BenchRow& r) { return static_cast<double>(r.at.depth); },
      [](const BenchRow& r) { return r.tok_s(); },
      [](const BenchRow& r) {
        return fmt::format("{}, {} sequence{}", types_of(r), r.at.batch, r.at.batch == 1 ? "" : "s");
      });
  plot.caption =
      "Weights are read once for all sequences, the cache once for each: so it is the cache that depth adds.";
  return plot;
}

Plot by_batch(const BenchReport& report) {
  Plot plot;
  plot.name = "bound_by_batch";
  plot.title = "Decoding: how near to the machine's limit";
  plot.x = {"sequences decoded together", true, true};
  plot.y = {"of the bound, %", false, false, true};
  plot.series = curves_of(
      report, [](const BenchRow& r) { return static_cast<double>(r.at.batch); },
      [](const BenchRow& r) { return r.of_bound() * 100; },
      [](const BenchRow& r) { return fmt::format("{}, depth {}", types_of(r), r.at.depth); });
  plot.caption = "100 % is the time that reading the step's bytes, or computing its operations, takes at least.";
  return plot;
}

// "decode reaches 71 to 93 % of its bound", or nothing.
std::string reached(const BenchReport& report, bool decode) {
  double least = 0, most = 0;
  for (const BenchRow& row : report.rows) {
    if (decodes(row) != decode) continue;
    least = most == 0 ? row.of_bound() : std::min(least, row.of_bound());
    most = std::max(most, row.of_bound());
  }
  if (most == 0) return "";
  const std::string from = fmt::format("{:.0f}", least * 100), to = fmt::format("{:.0f}", most * 100);
  return fmt::format("{} reaches {} % of its bound", decode ? "decode" : "prefill",
                     from == to ? to : from + " to " + to);
}

}  // namespace

report::Report report_of(const BenchOptions& options, const BenchReport& report) {
  report::Report page;
  page.title = "stet bench";
  const std::string prefill = reached(report, false), decode = reached(report, true);
  page.summary =
      fmt::format("{} on {} thread{}: {}{}{}.", options.model, options.threads, options.threads == 1 ? "" : "s",
                  prefill, !prefill.empty() && !decode.empty() ? ", " : "", decode);
  report::Section section;
  section.title = "Speed beside its bound";
  for (const std::string& fault : bench_faults(report)) {
    section.paragraphs.push_back("The bounds of this run cannot be right: " + fault + ".");
  }
  std::set<Pos> depths;
  std::set<int> batches;
  for (const BenchRow& row : report.rows) {
    if (!decodes(row)) continue;
    depths.insert(row.at.depth);
    batches.insert(row.at.batch);
  }
  if (!report.rows.empty()) section.plots.push_back(roofline(report));
  if (depths.size() > 1) section.plots.push_back(by_depth(report));
  if (batches.size() > 1) section.plots.push_back(by_batch(report));
  section.tables.push_back(table_of(report));
  page.sections.push_back(std::move(section));
  return page;
}

}  // namespace stet::lab
