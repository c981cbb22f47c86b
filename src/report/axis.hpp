// Where values stand on an axis, and which of them get a tick. Computed here and not by gnuplot, so that labels can be
// placed beside curves, and so that counts of tokens read 16, 128, 1k, 16k.
#pragma once

#include <string>
#include <vector>

#include "report/report.hpp"

namespace stet::report {

struct Tick {
  double value = 0;
  std::string label;  // empty: a short one without words
};

struct Scale {
  double low = 0, high = 1;  // low < high; on a log axis both are above 0
  bool log = false;
  std::vector<Tick> ticks;  // ascending, within low and high

  /// The share of the axis below the value: 0 at low, 1 at high.
  double at(double value) const;
};

/// What can stand on the axis at all: at most 1e150 either way and, on a log axis, at least 1e-150.
bool shows(const Axis& axis, double value);

enum class Room : std::uint8_t { none, above_and_below };  // between the outermost values and the ends of the axis

/// An axis that holds all of the values that it can show. None, one, or equal ones: still one that can be drawn.
Scale scale_of(const Axis& axis, const std::vector<double>& values, Room room);

}  // namespace stet::report
