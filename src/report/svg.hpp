// gnuplot's SVG made fit for where it is shown.
#pragma once

#include <string>
#include <string_view>

#include "report/report.hpp"

namespace stet::report {

/// Whether this is a whole picture and not the beginning of one.
bool is_svg(std::string_view bytes);
bool is_png(std::string_view bytes);

/// As a file of its own: named, on white paper.
std::string svg_for_file(std::string svg, const Plot& plot);

/// Inside a page: without declaration, its ids its own, its colours the page's variables (palette.hpp), so that text
/// and curves follow light and dark.
std::string svg_for_page(std::string svg, const Plot& plot);

}  // namespace stet::report
