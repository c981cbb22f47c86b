// Which bits this build computes.
#pragma once

namespace stet {

/// Version of the contract of docs/numerics.md: equal numbers mean equal bits.
inline constexpr int kNumericsVersion = 1;

}  // namespace stet
