#include "machine.hpp"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>

#include "base/thread_pool.hpp"
#include "stet/version.hpp"

namespace stet::cli {

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  utsname name{};
  return ::uname(&name) == 0 ? name.machine : "unknown CPU";
}

std::string machine_words() {
  const int cpus = base::available_cpus();
  std::string words = fmt::format("{}, {} CPU{}", cpu_name(), cpus, cpus == 1 ? "" : "s");
  const long pages = ::sysconf(_SC_PHYS_PAGES), bytes = ::sysconf(_SC_PAGESIZE);
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  if (pages > 0 && bytes > 0) {
    words += fmt::format(", {:.1f} GiB of memory", static_cast<double>(pages) * static_cast<double>(bytes) / kGiB);
  }
  return words;
}

std::string build_words() {
  const Version v = version();
  return fmt::format("stet {}, {}, kernels for {}, numerics {}", v.version, v.compiler, v.target, v.numerics);
}

}  // namespace stet::cli
