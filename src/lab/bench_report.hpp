// What bench measured, as tables and plots.
#pragma once

#include "lab/bench.hpp"
#include "report/report.hpp"

namespace stet::lab {

/// Rows beside their bounds, the roofline, decode speed by depth and share of the bound by batch (where there are
/// several of them), and what speaks against the bounds. Without json.
report::Report report_of(const BenchOptions& options, const BenchReport& report);

}  // namespace stet::lab
