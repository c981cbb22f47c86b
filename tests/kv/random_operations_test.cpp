// Caches of every layout held to the model by random operations. STET_OPS: how many, over all seeds.
#include <gtest/gtest.h>

#include <cstdlib>

#include "kv/driver.hpp"

namespace stet::kv_test {
namespace {

constexpr int kPrograms = 8;  // so that they run side by side
constexpr int kPerSeed = 250;

// Sanitizers see each kind of operation soon enough, at thirty times the cost.
#if defined(__SANITIZE_THREAD__)
constexpr int kOperations = 4000;
#elif defined(__SANITIZE_ADDRESS__)
constexpr int kOperations = 20000;
#else
constexpr int kOperations = 50000;
#endif

int operations() {
  const char* asked = std::getenv("STET_OPS");
  return asked != nullptr ? std::max(std::atoi(asked), kPrograms * kPerSeed) : kOperations;
}

class RandomOperations : public testing::TestWithParam<int> {};

TEST_P(RandomOperations, HoldWhatTheModelHolds) {
  std::map<std::string, int> done;
  const int seeds = operations() / kPrograms / kPerSeed;
  for (int i = 0; i < seeds; ++i) {
    const auto seed = static_cast<std::uint64_t>(i * kPrograms + GetParam());
    try {
      Driver driver(seed, Choices(~seed));
      driver.run(kPerSeed);
      for (const auto& [what, count] : driver.done()) done[what] += count;
    } catch (const Failed& failed) {
      FAIL() << "seed " << seed << ": " << failed.what();
    }
  }
  // Every kind of thing was really met, unless there was too little of everything.
  if (seeds < 10) return;
  for (const char* what : {"open",
                           "open refused",
                           "close",
                           "truncate",
                           "truncate to what was evicted",
                           "truncate to what is not there",
                           "fork",
                           "fork refused",
                           "fork at what was evicted",
                           "fork at what is not there",
                           "restore",
                           "restore refused",
                           "restore without room",
                           "restore from a bad view",
                           "append",
                           "commit",
                           "abandon",
                           "evict",
                           "overflow",
                           "exhausted",
                           "allocation refused",
                           "stale close",
                           "stale length",
                           "stale truncate",
                           "stale fork",
                           "stale oldest_restorable",
                           "stale peek",
                           "stale begin",
                           "empty step",
                           "no tokens",
                           "too many rows",
                           "twice in a step",
                           "too long a step",
                           "open in a step",
                           "close in a step",
                           "truncate in a step",
                           "fork in a step",
                           "restore in a step",
                           "begin in a step"}) {
    EXPECT_GE(done[what], seeds) << what;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomOperations, testing::Range(0, kPrograms));

}  // namespace
}  // namespace stet::kv_test
