// Where everything of a plot stands, in pixels from the lower left corner, before gnuplot draws it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "report/axis.hpp"

namespace stet::report {

inline constexpr double kFontSize = 14, kLineHeight = 18, kTitleHeight = 21;

struct Curve {
  const Series* series = nullptr;
  std::size_t colour = 0;                         // of the palette
  std::vector<std::pair<double, double>> points;  // that can be shown
  std::vector<std::string> label;                 // its lines
  double label_y = 0;                             // middle of the label
};

struct MarkLabel {
  double x = 0;                // of the line, in the axis' unit
  double left = 0, right = 0;  // ends of the words, which are perhaps shorter
  bool before = false;         // the words stand left of the line and end there; else they begin at it
  double y = 0;                // their middle
  std::string text;
};

struct Layout {
  double width = 0, height = 0;                     // of the picture
  double left = 0, right = 0, bottom = 0, top = 0;  // of the frame
  double label_x = 0;                               // left edge of the curves' labels
  Scale x, y;
  std::vector<std::string> title;
  std::vector<Curve> curves;
  std::vector<MarkLabel> marks;

  double x_of(double value) const { return left + (right - left) * x.at(value); }
  double y_of(double value) const { return bottom + (top - bottom) * y.at(value); }
};

Layout layout_of(const Plot& plot);

}  // namespace stet::report
