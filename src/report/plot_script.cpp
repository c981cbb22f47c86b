#include "report/plot_script.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "report/escape.hpp"
#include "report/palette.hpp"
#include "report/plot_layout.hpp"

namespace stet::report {
namespace {

using Style = Series::Style;

// Told apart by more than colour: dashes of lines and shapes of marks, as many as there are colours.
constexpr const char* kDashes[] = {"solid", "(14,5)", "(4,4)", "(12,4,3,4)", "(8,4)", "(12,4,3,4,3,4)", "(2,5)"};
constexpr int kShapes[] = {7, 5, 9, 13, 11, 6, 4};
constexpr double kTitleSize = 16, kPoints = 0.75;  // a point of pngcairo's fonts is 4/3 of a pixel, svg's is one
constexpr const char* kModelDash = "(7,5)";
static_assert(std::size(kDashes) == kSeriesColours.size() && std::size(kShapes) == kSeriesColours.size());

// gnuplot runs what stands in backquotes in double quotes, and expands @names; in single quotes nothing.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : line_of(text)) out += c == '\'' ? std::string("''") : std::string(1, c);
  return out + '\'';
}

class Script {
 public:
  explicit Script(const Plot& plot) : plot_(plot), at_(layout_of(plot)) {}

  std::string text(Picture picture) {
    head(picture);
    words(picture);
    axes();
    for (const MarkLabel& mark : at_.marks) draw_mark(mark);
    for (const Curve& curve : at_.curves) draw_label(curve);
    curves();
    return std::move(out_);
  }

 private:
  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
    out_ += '\n';
  }

  // A point of the picture in gnuplot's words.
  std::string point(double x, double y) const {
    return fmt::format("screen {:.6f},{:.6f}", x / at_.width, y / at_.height);
  }
  void stroke(double x1, double y1, double x2, double y2, std::string_view look) {
    line("set arrow from {} to {} nohead {}", point(x1, y1), point(x2, y2), look);
  }
  void write(double x, double y, const std::string& text, std::string_view look) {
    line("set label {} at {} {}", quoted(text), point(x, y), look);
  }

  void head(Picture picture) {
    line("set encoding utf8");
    if (picture == Picture::svg) {
      line("set terminal svg size {},{} dynamic noenhanced font 'sans-serif,{}'", at_.width, at_.height, kFontSize);
    } else {  // twice as many pixels, for dense screens and paper
      line(
          "set terminal pngcairo size {},{} noenhanced fontscale 2 linewidth 2 pointscale 2 background '{}' "
          "font 'sans,{}'",
          2 * at_.width, 2 * at_.height, kPaper.light, kFontSize * kPoints);
    }
    line("unset key");
    line("set lmargin at screen {:.6f}", at_.left / at_.width);
    line("set rmargin at screen {:.6f}", at_.right / at_.width);
    line("set bmargin at screen {:.6f}", at_.bottom / at_.height);
    line("set tmargin at screen {:.6f}", at_.top / at_.height);
  }

  void words(Picture picture) {
    const double size = picture == Picture::svg ? kTitleSize : kTitleSize * kPoints;
    double y = at_.height - 14 - kTitleHeight / 2;
    for (const std::string& title : at_.title) {
      write(14, y, title, fmt::format("left front textcolor rgb '{}' font 'sans-serif:Bold,{}'", kInk.light, size));
      y -= kTitleHeight;
    }
    write(14, y - 4, plot_.y.label, fmt::format("left front textcolor rgb '{}'", kMuted.light));
    write((at_.left + at_.right) / 2, 10 + kLineHeight / 2, plot_.x.label,
          fmt::format("center front textcolor rgb '{}'", kMuted.light));
  }

  void axes() {
    const auto axis = [&](char name, const Axis& is, const Scale& scale) {
      if (is.log) line("set logscale {}", name);
      line("set {}range [{:.17g}:{:.17g}] noextend", name, scale.low, scale.high);
      std::string ticks;
      for (const Tick& tick : scale.ticks) {
        ticks += fmt::format("{}{} {:.17g} {}", ticks.empty() ? "" : ", ", quoted(tick.label), tick.value,
                             tick.label.empty() ? 1 : 0);
      }
      line("set {}tics nomirror out scale 0.6,0.35 textcolor rgb '{}' ({})", name, kInk.light, ticks);
    };
    line("set border 3 back linecolor rgb '{}' linewidth 1", kMuted.light);
    axis('x', plot_.x, at_.x);
    axis('y', plot_.y, at_.y);
    const std::string look = fmt::format("back linecolor rgb '{}' linewidth 0.8", kGrid.light);
    for (const Tick& tick : at_.x.ticks) {
      const double x = at_.x_of(tick.value);
      if (!tick.label.empty() && x > at_.left + 1) stroke(x, at_.bottom, x, at_.top, look);
    }
    for (const Tick& tick : at_.y.ticks) {
      const double y = at_.y_of(tick.value);
      if (!tick.label.empty() && y > at_.bottom + 1) stroke(at_.left, y, at_.right, y, look);
    }
  }

  void draw_mark(const MarkLabel& mark) {
    const double x = at_.x_of(mark.x);
    stroke(x, at_.bottom, x, mark.y + kLineHeight / 3,
           fmt::format("back linecolor rgb '{}' linewidth 1 dashtype (3,3)", kMuted.light));
    write(mark.before ? mark.right : mark.left, mark.y, mark.text,
          fmt::format("{} front textcolor rgb '{}'", mark.before ? "right" : "left", kInk.light));
  }

  static std::string look_of(const Curve& curve) {
    const Style style = curve.series->style;
    const char* dash = style == Style::model                           ? kModelDash
                       : style == Style::line || style == Style::steps ? kDashes[curve.colour]
                                                                       : "solid";
    return fmt::format("linecolor rgb '{}' linewidth {} dashtype {}", kSeriesColours[curve.colour].light,
                       style == Style::model ? 1.2 : 2, dash);
  }
  // A mark's shape also stands before the label. A line of one point would not be seen.
  static bool has_marks(const Curve& curve) {
    const Style style = curve.series->style;
    return style == Style::points || style == Style::marked || curve.points.size() == 1;
  }
  static std::string mark_of(const Curve& curve) {
    return fmt::format("pointtype {} pointsize 0.9", kShapes[curve.colour]);
  }

  // The label stands right of the frame; a leader leads there from the curve's end, in the curve's own dash.
  void draw_label(const Curve& curve) {
    if (curve.label.empty()) return;
    const auto [last_x, last_y] = curve.points.back();
    const double x = at_.x_of(last_x), y = at_.y_of(last_y), end = at_.label_x - (has_marks(curve) ? 11 : 6);
    const std::string thin =
        fmt::format("back linecolor rgb '{}' linewidth 0.8 dashtype (2,3)", kSeriesColours[curve.colour].light);
    // In grey: a curve that ends early does not go on.
    const std::string onwards = fmt::format("back linecolor rgb '{}' linewidth 0.8 dashtype (2,3)", kMuted.light);
    if (x < at_.right - 1) stroke(x, y, at_.right, y, onwards);
    stroke(at_.right, y, end, curve.label_y, curve.series->style == Style::points ? thin : "front " + look_of(curve));
    if (has_marks(curve)) {
      line("set label '' at {} point {} linecolor rgb '{}' front", point(end, curve.label_y), mark_of(curve),
           kSeriesColours[curve.colour].light);
    }
    const double top = curve.label_y + kLineHeight * (static_cast<double>(curve.label.size()) - 1) / 2;
    for (std::size_t i = 0; i < curve.label.size(); ++i) {
      write(at_.label_x, top - kLineHeight * static_cast<double>(i), curve.label[i],
            fmt::format("left front textcolor rgb '{}'", kInk.light));
    }
  }

  void curves() {
    if (at_.curves.empty()) {
      write((at_.left + at_.right) / 2, (at_.bottom + at_.top) / 2, "no points to show",
            fmt::format("center front textcolor rgb '{}'", kMuted.light));
      line("plot NaN notitle");
      return;
    }
    std::string plots;
    for (std::size_t i = 0; i < at_.curves.size(); ++i) {
      const Curve& curve = at_.curves[i];
      line("$s{} << END", i);
      for (const auto& [x, y] : curve.points) line("{:.9g} {:.9g}", x, y);
      line("END");
      const Style style = curve.series->style;
      const char* with = style == Style::points || curve.points.size() == 1 ? "points"
                         : style == Style::marked                           ? "linespoints"
                         : style == Style::steps                            ? "steps"
                                                                            : "lines";
      std::string look = look_of(curve);
      if (with == std::string_view("points")) look = look.substr(0, look.find(" linewidth"));
      if (has_marks(curve)) look += ' ' + mark_of(curve);
      plots += fmt::format("{}$s{} using 1:2 with {} {} notitle", i == 0 ? "plot " : ", ", i, with, look);
    }
    line("{}", plots);
  }

  const Plot& plot_;
  Layout at_;
  std::string out_;
};

}  // namespace

std::string script_of(const Plot& plot, Picture picture) {
  return Script(plot).text(picture);
}

std::size_t left_out(const Plot& plot) {
  std::size_t count = 0;
  for (const Series& series : plot.series) {
    for (const auto& [x, y] : series.points) count += shows(plot.x, x) && shows(plot.y, y) ? 0 : 1;
  }
  return count;
}

}  // namespace stet::report
