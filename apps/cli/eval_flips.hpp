// stet eval --flips.
#pragma once

#include "lab/flips.hpp"
#include "report_folder.hpp"

namespace stet::cli {

/// Runs it and prints the table, or one JSON object; a report if the flag asks for one. The exit code is kFailure when
/// cached and recomputed bits differ.
int show_flips(const lab::FlipOptions& options, const lab::EvalInput& input, bool json, const ReportFlag& flag);

}  // namespace stet::cli
