#include "base/thread_pool.hpp"

#include <sched.h>

#include <atomic>
#include <exception>
#include <optional>
#include <thread>
#include <vector>

namespace stet::base {
namespace {

// A step of a small model is hundreds of regions of some microseconds, so a thread without work spins for about as long
// as a region takes; then it gives its CPU to others, who may be the ones it waits for; then it sleeps.
constexpr int kSpins = 2000;
constexpr int kYields = 50;

void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

cpu_set_t allowed_cpus() noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) CPU_ZERO(&set);
  return set;
}

// Keeps the calling thread on the n-th CPU of a set; where the system refuses, it runs anywhere.
void stay_on(const cpu_set_t& allowed, int n) noexcept {
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || n-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    (void)sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

// Returns once value is no longer `old`.
template <class T>
void wait_while(const std::atomic<T>& value, T old) noexcept {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  for (int i = 0; i < kYields; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    sched_yield();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

// Each thread has a range of neighbouring tasks, so that it streams through its own part of the memory; a thread that
// is done takes the last of another's. A range is one word, its begin above and its end below, and taking a task is a
// compare-and-swap of it. Whoever succeeds has a task of the region that runs now, even if it slept through some: the
// index is in the word, the region cannot end before this task does, and what belongs to a region is there before its
// first range.
struct ThreadPool::Team {
  struct alignas(64) Share {
    std::atomic<std::uint64_t> left{0};
  };
  explicit Team(int threads) : shares(static_cast<std::size_t>(threads)), used(shares.size()) {}

  // What workers watch, and what hardly changes, on one line; what each of them writes on others.
  alignas(64) std::atomic<std::uint32_t> region{0};
  std::atomic<bool> stop{false};
  std::atomic<const std::function<void(std::size_t)>*> task{nullptr};
  std::vector<Share> shares;         // the caller's first
  std::atomic<std::size_t> used{0};  // of them, those of threads that run
  std::vector<std::thread> workers;
  alignas(64) std::atomic<std::size_t> unfinished{0};
  std::optional<cpu_set_t> caller_cpus;  // before it was pinned

  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  static std::uint64_t range(std::uint64_t begin, std::uint64_t end) { return begin << 32 | end; }

  // A task of this share, or kNone.
  static std::size_t take(Share& share, bool last) {
    std::uint64_t left = share.left.load(std::memory_order_acquire);
    while (true) {
      const std::uint64_t begin = left >> 32, end = left & 0xffff'ffff;
      if (begin >= end) return kNone;
      const std::uint64_t next = last ? range(begin, end - 1) : range(begin + 1, end);
      if (share.left.compare_exchange_weak(left, next, std::memory_order_acq_rel, std::memory_order_acquire)) {
        return last ? end - 1 : begin;
      }
    }
  }

  // Runs tasks until none is left: those of thread `me`, then others'.
  void work_off(std::size_t me) {
    std::size_t done = 0;
    const std::size_t n = used.load(std::memory_order_relaxed);
    for (std::size_t i = 0; i < n; ++i) {
      Share& share = shares[(me + i) % n];
      for (std::size_t index; (index = take(share, i > 0)) != kNone; ++done) {
        (*task.load(std::memory_order_relaxed))(index);
      }
    }
    if (done > 0 && unfinished.fetch_sub(done, std::memory_order_acq_rel) == done) unfinished.notify_one();
  }

  void worker(std::size_t me) {
    while (true) {
      const std::uint32_t seen = region.load(std::memory_order_acquire);
      if (stop.load(std::memory_order_acquire)) return;
      work_off(me);
      wait_while(region, seen);
    }
  }

  void announce() {
    region.fetch_add(1, std::memory_order_acq_rel);
    region.notify_all();
  }
};

ThreadPool::ThreadPool(int threads, bool pin) : threads_(threads), team_(std::make_unique<Team>(threads)) {
  const cpu_set_t allowed = allowed_cpus();
  const int cpus = CPU_COUNT(&allowed);
  pin = pin && cpus > 0;
  if (pin) {
    team_->caller_cpus = allowed;
    stay_on(allowed, 0);
  }
  for (int i = 1; i < threads; ++i) {
    try {
      team_->workers.emplace_back([team = team_.get(), pin, allowed, cpus, i] {
        if (pin) stay_on(allowed, i % cpus);
        team->worker(static_cast<std::size_t>(i));
      });
    } catch (const std::exception&) {
      // The system starts no more: those that run do all the work, to the same bits.
      threads_ = i;
      team_->used.store(static_cast<std::size_t>(i), std::memory_order_relaxed);
      return;
    }
  }
}

ThreadPool::~ThreadPool() {
  team_->stop.store(true, std::memory_order_release);
  team_->announce();
  for (auto& worker : team_->workers) worker.join();
  if (team_->caller_cpus) (void)sched_setaffinity(0, sizeof(cpu_set_t), &*team_->caller_cpus);
}

void ThreadPool::run(std::size_t tasks, const std::function<void(std::size_t)>& task) {
  if (threads_ == 1 || tasks <= 1) {
    for (std::size_t i = 0; i < tasks; ++i) task(i);
    return;
  }
  team_->task.store(&task, std::memory_order_relaxed);
  team_->unfinished.store(tasks, std::memory_order_relaxed);
  const auto threads = static_cast<std::size_t>(threads_);
  for (std::size_t i = 0; i < threads; ++i) {
    team_->shares[i].left.store(Team::range(tasks * i / threads, tasks * (i + 1) / threads), std::memory_order_release);
  }
  team_->announce();
  team_->work_off(0);
  for (std::size_t left; (left = team_->unfinished.load(std::memory_order_acquire)) != 0;) {
    wait_while(team_->unfinished, left);
  }
}

int available_cpus() noexcept {
  const cpu_set_t set = allowed_cpus();
  const int n = CPU_COUNT(&set);
  return n > 0 ? n : 1;
}

}  // namespace stet::base
