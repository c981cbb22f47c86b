#include "base/memory.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string>
#include <string_view>

namespace stet::base {
namespace {

namespace fs = std::filesystem;

// These files have no size that stat would know, so they are read until they end.
std::string read_all(const fs::path& path) {
  std::string text;
  if (std::FILE* file = std::fopen(path.c_str(), "re"); file != nullptr) {
    char part[4096];
    for (std::size_t n; (n = std::fread(part, 1, sizeof part, file)) > 0;) text.append(part, n);
    (void)std::fclose(file);
  }
  return text;
}

std::optional<std::uint64_t> number(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  std::uint64_t value = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc()) return {};
  return value;
}

// The number behind `key` at the start of a line.
std::optional<std::uint64_t> field(std::string_view text, std::string_view key) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    if (line.starts_with(key)) return number(line.substr(key.size()));
    at = end + 1;
  }
  return {};
}

void lower(std::optional<std::uint64_t>& least, std::optional<std::uint64_t> other) {
  if (other && (!least || *other < *least)) least = other;
}

// What a group leaves: its limit less what is used and could not be taken back from file caches.
std::optional<std::uint64_t> left_in(const fs::path& group, const char* limit_file, const char* usage_file,
                                     std::string_view reclaimable) {
  const auto limit = number(read_all(group / limit_file)), usage = number(read_all(group / usage_file));
  if (!limit || !usage) return {};  // "max": no limit
  const std::uint64_t files = field(read_all(group / "memory.stat"), reclaimable).value_or(0);
  const std::uint64_t held = *usage > files ? *usage - files : 0;
  return *limit > held ? *limit - held : 0;
}

// A group and all above it, up to where the hierarchy is mounted.
void lower_by_groups(std::optional<std::uint64_t>& least, const fs::path& mount, fs::path group, bool v2) {
  for (;; group = group.parent_path()) {
    const fs::path folder = mount / group.relative_path();
    lower(least, v2 ? left_in(folder, "memory.max", "memory.current", "inactive_file ")
                    : left_in(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "));
    if (group == group.root_path() || group.empty()) return;
  }
}

}  // namespace

std::optional<std::uint64_t> available_memory(const fs::path& root) {
  std::optional<std::uint64_t> least;
  if (const auto kib = field(read_all(root / "proc/meminfo"), "MemAvailable:")) least = *kib * 1024;

  // Lines of /proc/self/cgroup: "0::/path" is v2, "4:memory:/path" v1.
  const std::string groups = read_all(root / "proc/self/cgroup");
  for (std::size_t at = 0; at < groups.size();) {
    const std::size_t end = std::min(groups.find('\n', at), groups.size());
    const std::string line = groups.substr(at, end - at);
    at = end + 1;
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (controllers.empty()) lower_by_groups(least, root / "sys/fs/cgroup", path, true);
    if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      lower_by_groups(least, root / "sys/fs/cgroup/memory", path, false);
    }
  }

  rlimit address_space{};
  if (getrlimit(RLIMIT_AS, &address_space) == 0 && address_space.rlim_cur != RLIM_INFINITY) {
    const auto used = field(read_all(root / "proc/self/status"), "VmSize:").value_or(0) * 1024;
    lower(least, address_space.rlim_cur > used ? address_space.rlim_cur - used : 0);
  }
  return least;
}

std::optional<std::uint64_t> peak_memory() {
  constexpr std::uint64_t kKib = 1024;
  const auto kib = field(read_all("/proc/self/status"), "VmHWM:");
  if (!kib) return {};
  return *kib * kKib;
}

bool reset_peak_memory() {
#if defined(__GLIBC__)
  ::malloc_trim(0);  // what was freed goes back to the system, so that it counts anew when it is taken again
#endif
  const int fd = ::open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);  // NOLINT(*-vararg)
  if (fd < 0) return false;
  const bool written = ::write(fd, "5", 1) == 1;  // proc(5): the peak is from now on
  return ::close(fd) == 0 && written;
}

}  // namespace stet::base
