// Words beside curves: broken into lines, and moved apart where they would stand on each other.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace stet::report {

/// Lines of at most `width` code points, broken at spaces, else within a word. What is more than `most` lines is cut
/// and ends in an ellipsis. Never empty; the text is made one line first (line_of).
std::vector<std::string> wrapped(std::string_view text, std::size_t width, std::size_t most);

/// A label wants its middle at `at`, and takes `size`, in one unit.
struct Place {
  double at = 0, size = 0;
};

/// Middles in the order of `wanted`, within [low, high], none overlapping another as far as there is room, and as near
/// to what was wanted as can be (least squares).
std::vector<double> spread(const std::vector<Place>& wanted, double low, double high);

}  // namespace stet::report
