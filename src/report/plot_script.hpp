// A plot as a script for gnuplot.
#pragma once

#include <cstdint>
#include <string>

#include "report/report.hpp"

namespace stet::report {

enum class Picture : std::uint8_t { svg, png };

/// Draws to gnuplot's standard output. All that the plot holds is data or single-quoted: nothing in it is run, and
/// nothing but this script is read. Axes, ticks and the places of labels are computed here.
std::string script_of(const Plot& plot, Picture picture);

/// How many points cannot be shown: not finite, or at or below zero on a log axis.
std::size_t left_out(const Plot& plot);

}  // namespace stet::report
