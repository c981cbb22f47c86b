// The page that holds a whole report.
#pragma once

#include <map>
#include <string>

#include "report/report.hpp"

namespace stet::report {

/// The points of a plot, one a row: series, x, y. All of them, also those that cannot be shown.
Table data_of(const Plot& plot);

/// HTML that loads nothing and runs nothing. `pictures` are the plots' SVGs by name, as gnuplot wrote them; a plot
/// without one is shown as numbers. `no_plots` says why, or is empty.
std::string page_of(const Report& report, const std::map<std::string, std::string>& pictures,
                    const std::string& no_plots);

}  // namespace stet::report
