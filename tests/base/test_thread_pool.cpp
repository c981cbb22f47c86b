#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/thread_pool.hpp"

namespace stet::base {
namespace {

TEST(ThreadPool, RunsEveryTaskOnceWhateverTheThreads) {
  for (const int threads : {1, 2, 3, 9}) {
    ThreadPool pool(threads);
    for (const std::size_t tasks :
         {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{7}, std::size_t{1000}}) {
      std::vector<std::atomic<int>> ran(tasks);
      pool.run(tasks, [&](std::size_t i) { ran[i].fetch_add(1); });
      for (const auto& n : ran) EXPECT_EQ(n.load(), 1);
    }
  }
}

TEST(ThreadPool, ARegionIsOverWhenRunReturns) {
  // Plain, not atomic: every region reads what all threads wrote in the one before. TSan checks the ordering.
  ThreadPool pool(4);
  std::vector<int> a(64, 0), b(64, 0);
  for (int round = 0; round < 3000; ++round) {
    pool.run(a.size(), [&](std::size_t i) { a[i] = b[(i + 7) % 64] + 1; });
    pool.run(b.size(), [&](std::size_t i) { b[i] = a[(i + 5) % 64]; });
  }
  for (const int x : b) EXPECT_EQ(x, 3000);
}

TEST(ThreadPool, WorkersThatSleptTakePartAgain) {
  ThreadPool pool(2);
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));  // long enough for the worker to fall asleep
    // Two tasks that wait for each other: they end only if two threads run them.
    std::atomic<int> arrived{0};
    pool.run(2, [&](std::size_t) {
      arrived.fetch_add(1);
      while (arrived.load() < 2) std::this_thread::yield();
    });
    EXPECT_EQ(arrived.load(), 2);
  }
}

TEST(ThreadPool, PinnedThreadsWorkAndTheCallerIsFreeAfterwards) {
  const int before = available_cpus();
  {
    ThreadPool pool(3, true);
    EXPECT_EQ(available_cpus(), 1);
    std::atomic<int> ran{0};
    std::atomic<bool> free{false};
    pool.run(100, [&](std::size_t) {
      ran.fetch_add(1);
      if (available_cpus() != 1) free = true;
    });
    EXPECT_EQ(ran.load(), 100);
    EXPECT_FALSE(free.load());
  }
  EXPECT_EQ(available_cpus(), before);
}

TEST(ThreadPool, StartsAndStopsWithoutWork) {
  for (int i = 0; i < 50; ++i) ThreadPool pool(5);
  EXPECT_GE(available_cpus(), 1);
}

}  // namespace
}  // namespace stet::base
