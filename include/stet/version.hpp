// What this build is.
#pragma once

#include "stet/result.hpp"

namespace stet {

struct Version {
  const char* version;   // of the release, "0.1.0"
  const char* compiler;  // name and version
  const char* target;    // instruction set of the kernels that run on this machine
  int numerics;          // version of the contract of docs/numerics.md; equal numbers mean equal bits
};

Version version() noexcept;

/// Code::unsupported on a CPU without fused multiply-add: Stet's bits need it. Engine::load calls it.
Result<void> check_cpu();

}  // namespace stet
