#include "report/plot_layout.hpp"

#include <algorithm>

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

// Words of marks stand above the frame, right of their lines. From right to left each takes the lowest row where it
// does not touch another: so a line that goes up to a higher row passes left of the words below. Returns the rows.
int place_marks(const Plot& plot, Layout& layout) {
  for (const Mark& mark : plot.marks) {
    if (shows(plot.x, mark.x)) layout.marks.push_back({mark.x, 0, 0, wrapped(mark.label, kMarkWidth, 1).front()});
  }
  std::stable_sort(layout.marks.begin(), layout.marks.end(),
                   [](const MarkLabel& a, const MarkLabel& b) { return a.x > b.x; });
  std::vector<double> row_begins;
  for (MarkLabel& mark : layout.marks) {
    const double width = width_in_pixels(mark.text), line = layout.x_of(mark.x);
    mark.left = std::max(kMargin, std::min(line + kMarkGap, layout.width - kMargin - width));
    std::size_t row = 0;
    while (row < row_begins.size() && row_begins[row] < mark.left + width + kCharacter) ++row;
    if (row == row_begins.size()) row_begins.push_back(0);
    row_begins[row] = std::min(mark.left, line);
    mark.y = layout.top + kGap + kLineHeight * (static_cast<double>(row) + 0.5);
  }
  return static_cast<int>(row_begins.size());
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
  const int rows = place_marks(plot, layout);
  const double above = kGap + rows * kLineHeight + kLineHeight + 2 * kGap;  // marks, the name of the y axis
  layout.height = layout.top + above + kTitleHeight * static_cast<double>(layout.title.size()) + kMargin;
  place_labels(layout);
  return layout;
}

}  // namespace stet::report
