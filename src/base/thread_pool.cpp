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

// A region is one word: its number above, the tasks that nobody has taken yet below. Taking one is a compare-and-swap
// of that word, so a thread that slept through a region can take nothing of it, and the region ends when its tasks are
// done, whether or not every thread woke up for it.
struct ThreadPool::Team {
  alignas(64) std::atomic<std::uint64_t> region{0};
  alignas(64) std::atomic<std::size_t> unfinished{0};
  std::atomic<const std::function<void(std::size_t)>*> task{nullptr};
  std::atomic<std::size_t> tasks{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> workers;
  std::optional<cpu_set_t> caller_cpus;  // before it was pinned

  static constexpr std::uint64_t kUntaken = 0xffff'ffff;

  // Takes tasks until none is left; returns the word that said so.
  std::uint64_t work_off() {
    std::uint64_t now = region.load(std::memory_order_acquire);
    while ((now & kUntaken) != 0) {
      if (!region.compare_exchange_weak(now, now - 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      // The region cannot end before this task does, so what belongs to it cannot change.
      const std::size_t index = tasks.load(std::memory_order_relaxed) - (now & kUntaken);
      (*task.load(std::memory_order_relaxed))(index);
      if (unfinished.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished.notify_one();
      now = region.load(std::memory_order_acquire);
    }
    return now;
  }

  void worker() {
    while (true) {
      // `stop` is set before the region that announces it opens, so it is seen with that region or before it.
      const std::uint64_t seen = work_off();
      if (stop.load(std::memory_order_acquire)) return;
      wait_while(region, seen);
    }
  }

  void open(std::size_t n) {
    const std::uint64_t next = (region.load(std::memory_order_relaxed) >> 32) + 1;
    region.store(next << 32 | n, std::memory_order_release);
    region.notify_all();
  }
};

ThreadPool::ThreadPool(int threads, bool pin) : threads_(threads), team_(std::make_unique<Team>()) {
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
        team->worker();
      });
    } catch (const std::exception&) {
      // The system starts no more: those that run do all the work, to the same bits.
      threads_ = i;
      return;
    }
  }
}

ThreadPool::~ThreadPool() {
  team_->stop.store(true, std::memory_order_release);
  team_->open(0);
  for (auto& worker : team_->workers) worker.join();
  if (team_->caller_cpus) (void)sched_setaffinity(0, sizeof(cpu_set_t), &*team_->caller_cpus);
}

void ThreadPool::run(std::size_t tasks, const std::function<void(std::size_t)>& task) {
  if (threads_ == 1 || tasks <= 1) {
    for (std::size_t i = 0; i < tasks; ++i) task(i);
    return;
  }
  team_->task.store(&task, std::memory_order_relaxed);
  team_->tasks.store(tasks, std::memory_order_relaxed);
  team_->unfinished.store(tasks, std::memory_order_relaxed);
  team_->open(tasks);
  team_->work_off();
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
