#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/memory.hpp"

namespace stet::base {
namespace {

namespace fs = std::filesystem;

// A pretended / with just the files that tell of memory.
class Memory : public testing::Test {
 protected:
  Memory() : root_(fs::path(testing::TempDir()) / ("stet-memory-" + std::to_string(getpid()))) {
    write("proc/meminfo", "MemTotal:       4000 kB\nMemFree:  10 kB\nMemAvailable:   1000 kB\n");
  }
  ~Memory() override { fs::remove_all(root_); }
  void write(const fs::path& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  fs::path root_;
};

TEST_F(Memory, IsWhatTheMachineHasWithoutGroups) {
  EXPECT_EQ(available_memory(root_), 1000 * 1024U);
}

TEST_F(Memory, IsLimitedByAGroupOrOneAboveIt) {
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/b/memory.max", "max\n");
  write("sys/fs/cgroup/a/b/memory.current", "100000\n");
  EXPECT_EQ(available_memory(root_), 1000 * 1024U);
  write("sys/fs/cgroup/a/memory.max", "500000\n");
  write("sys/fs/cgroup/a/memory.current", "200000\n");
  EXPECT_EQ(available_memory(root_), 300000U);
  write("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 50000\n");
  EXPECT_EQ(available_memory(root_), 350000U);
  write("sys/fs/cgroup/a/memory.current", "900000\n");
  EXPECT_EQ(available_memory(root_), 0U);
}

TEST_F(Memory, KnowsTheFirstVersionOfGroups) {
  write("proc/self/cgroup", "3:cpu,cpuacct:/x\n4:memory:/x\n");
  write("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "400000\n");
  write("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "100000\n");
  EXPECT_EQ(available_memory(root_), 300000U);
}

TEST_F(Memory, IsUnknownWhereNothingTells) {
  EXPECT_FALSE(available_memory(root_ / "nowhere"));
}

TEST(MemoryOfThisMachine, IsThere) {
  const auto available = available_memory();
  ASSERT_TRUE(available);
  EXPECT_GT(*available, std::uint64_t{1} << 20);
}

// Where the system does not forget its peak, what was before counts on.
TEST(PeakMemory, IsThatSinceTheLastReset) {
  constexpr std::size_t kBytes = std::size_t{64} << 20, kMost = std::size_t{16} << 20;
  const bool forgets = reset_peak_memory();
  const auto before = peak_memory();
  ASSERT_TRUE(before);
  {
    std::vector<char> taken(kBytes, 1);
    EXPECT_GE(*peak_memory(), forgets ? *before + kBytes - kMost : *before);
    EXPECT_EQ(taken[kBytes / 2], 1);
  }
  const auto remembered = peak_memory();
  EXPECT_GE(*remembered, forgets ? *before + kBytes - kMost : *before);
  EXPECT_EQ(reset_peak_memory(), forgets);
  EXPECT_LE(*peak_memory(), forgets ? *before + kMost : *remembered + kMost);
}

}  // namespace
}  // namespace stet::base
