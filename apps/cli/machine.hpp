// The machine and the build, in words.
#pragma once

#include <string>

namespace stet::cli {

/// The CPU as the system calls it.
std::string cpu_name();

/// "AMD EPYC 9R14, 2 CPUs, 15.3 GiB of memory": the CPUs that this process may run on, and the machine's memory.
std::string machine_words();

/// "stet 0.1.0, g++ 12.2.0, kernels for avx512-vnni, numerics 1"
std::string build_words();

}  // namespace stet::cli
