#include "report/plot_layout.hpp"

#include <algorithm>
#include <iterator>

#include "report/escape.hpp"
#include "report/labels.hpp"
#include "report/palette.hpp"

namespace stet::report {
namespace {

constexpr double kWidth = 860, kFrameHeight = 350;
constexpr double kCharacter = 0.62 * kFontSize;  // wider than most fonts' mean: a label is not to be cut off
constexpr double kMargin = 14, kTickLabels = 36, kLeader = 34, kGap = 8, kMarkGap = 5;
constexpr std::size_t kLabelWidth = 25, kLabelLines = 3, kTitleWidth = 84, kMarkWidth = 40;

double width_in_pixels(const std::string& text) {
  return static_cast<double>(width_of(text)) * kCharacter;
}

std::vector<Curve> curves_of(const Plot& plot) {
  std::vector<Curve> curves;
  for (std::size_t i = 0; i < plot.series.size(); ++i) {
    const Series& series = plot.series[i];
    Curve curve;
    curve.series = &series;
    curve.colour = (series.colour < 0 ? i : static_cast<std::size_t>(series.colour)) % kSeriesColours.size();
    for (const auto& [x, y] : series.points) {
      if (shows(plot.x, x) && shows(plot.y, y)) curve.points.emplace_back(x, y);
    }
    if (curve.points.empty()) continue;
    if (!series.label.empty()) curve.label = wrapped(series.label, kLabelWidth, kLabelLines);
    curves.push_back(std::move(curve));
  }
  return curves;
}

void set_scales(const Plot& plot, Layout& layout) {
  std::vector<double> xs, ys;
  for (const Curve& curve : layout.curves) {
    for (const auto& [x, y] : curve.points) {
      xs.push_back(x);
      ys.push_back(y);
    }
  }
  for (const Mark& mark : plot.marks) xs.push_back(mark.x);
  layout.x = scale_of(plot.x, xs, Room::none);
  layout.y = scale_of(plot.y, ys, Room::above_and_below);
}

// The words in row `a` and the line that goes up to row `b`.
bool crosses(const MarkLabel& words, std::size_t a, double line, std::size_t b) {
  return b > a && line > words.left && line < words.right;
}

// Words of marks stand above the frame, right of their lines, or left where there is no room. Each takes the lowest row
// where no words touch and no line goes through words. Returns the rows.
std::size_t place_marks(const Plot& plot, Layout& layout) {
  std::vector<Mark> from_right;
  std::copy_if(plot.marks.begin(), plot.marks.end(), std::back_inserter(from_right),
               [&](const Mark& mark) { return shows(plot.x, mark.x); });
  std::stable_sort(from_right.begin(), from_right.end(), [](const Mark& a, const Mark& b) { return a.x > b.x; });
  std::vector<MarkLabel>& marks = layout.marks;
  double taken_from = layout.width - kMargin;  // by words left of their lines
  for (const Mark& mark : from_right) {
    MarkLabel label{mark.x, 0, 0, false, 0, wrapped(mark.label, kMarkWidth, 1).front()};
    const double width = width_in_pixels(label.text), line = layout.x_of(mark.x);
    label.before =
        line + kMarkGap + width > layout.width - kMargin || (line > taken_from && line - kMarkGap - width > kMargin);
    label.left = label.before ? line - kMarkGap - width : line + kMarkGap;
    label.right = label.left + width;
    if (label.before) taken_from = std::min(taken_from, label.left);
    marks.push_back(std::move(label));
  }
  // In this order a higher row's line passes beside what is below it.
  std::stable_sort(marks.begin(), marks.end(), [](const MarkLabel& a, const MarkLabel& b) {
    return a.before != b.before ? a.before : a.before ? a.x < b.x : a.x > b.x;
  });
  std::vector<std::size_t> rows;
  for (std::size_t i = 0; i < marks.size(); ++i) {
    const auto fits = [&](std::size_t row, bool lines_too) {
      for (std::size_t k = 0; k < i; ++k) {
        const bool touch = marks[i].left < marks[k].right + kCharacter && marks[k].left < marks[i].right + kCharacter;
        if (rows[k] == row && touch) return false;
        if (lines_too && (crosses(marks[k], rows[k], layout.x_of(marks[i].x), row) ||
                          crosses(marks[i], row, layout.x_of(marks[k].x), rows[k]))) {
          return false;
        }
      }
      return true;
    };
    std::size_t row = 0;
    while (row <= i && !fits(row, true)) ++row;
    if (row > i) {
      for (row = 0; !fits(row, false);) ++row;
    }
    rows.push_back(row);
    marks[i].y = layout.top + kGap + kLineHeight * (static_cast<double>(row) + 0.5);
  }
  return rows.empty() ? 0 : *std::max_element(rows.begin(), rows.end()) + 1;
}

// Of a label, with a little air: lines of one label are nearer to each other than to those of the next.
double height_of(const Curve& curve) {
  return curve.label.empty() ? 0 : static_cast<double>(curve.label.size()) * kLineHeight + 4;
}

void place_labels(Layout& layout) {
  std::vector<Place> wanted;
  for (const Curve& curve : layout.curves) {
    wanted.push_back({layout.y_of(curve.points.back().second), height_of(curve)});
  }
  const auto middles = spread(wanted, layout.bottom - kLineHeight / 2, layout.top + kLineHeight / 2);
  for (std::size_t i = 0; i < middles.size(); ++i) layout.curves[i].label_y = middles[i];
}

}  // namespace

Layout layout_of(const Plot& plot) {
  Layout layout;
  layout.width = kWidth;
  layout.title = wrapped(plot.title, kTitleWidth, 2);
  layout.curves = curves_of(plot);
  set_scales(plot, layout);

  double ticks = 0, labels = 0, label_heights = 0;
  for (const Tick& tick : layout.y.ticks) ticks = std::max(ticks, width_in_pixels(tick.label));
  for (const Curve& curve : layout.curves) {
    for (const std::string& line : curve.label) labels = std::max(labels, width_in_pixels(line));
    label_heights += height_of(curve);
  }
  layout.left = kMargin + ticks + 2 * kGap;
  layout.label_x = kWidth - kMargin - labels;
  layout.right = labels > 0 ? layout.label_x - kLeader - kGap : kWidth - 2 * kMargin;
  layout.bottom = kMargin + kLineHeight + kTickLabels;
  layout.top = layout.bottom + std::max(kFrameHeight, label_heights);
  const auto rows = static_cast<double>(place_marks(plot, layout));
  const double above = kGap + rows * kLineHeight + kLineHeight + 2 * kGap;  // marks, the name of the y axis
  layout.height = layout.top + above + kTitleHeight * static_cast<double>(layout.title.size()) + kMargin;
  place_labels(layout);
  return layout;
}

}  // namespace stet::report
