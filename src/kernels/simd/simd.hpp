// The vector kernels: a target for each instruction set of this build.
#pragma once

#include <vector>

#include "kernels/kernels.hpp"

namespace stet::kernels {

/// Those that this CPU runs, best first; empty when it runs none.
std::vector<Target> simd_targets();

}  // namespace stet::kernels
