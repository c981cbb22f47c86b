#include "base/thread_pool.hpp"

#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace stet::base {

struct ThreadPool::Team {
  std::mutex mutex;
  std::condition_variable wake, done;
  std::uint64_t region = 0;  // counts regions; a worker waits for it to change
  int busy = 0;
  bool stop = false;
  const std::function<void(std::size_t)>* task = nullptr;
  std::size_t tasks = 0;
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> workers;

  void work_off() {
    for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) (*task)(i);
  }

  void worker() {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex);
    while (true) {
      wake.wait(lock, [&] { return stop || region != seen; });
      if (stop) return;
      seen = region;
      lock.unlock();
      work_off();
      lock.lock();
      if (--busy == 0) done.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int threads) : threads_(threads), team_(std::make_unique<Team>()) {
  for (int i = 1; i < threads; ++i) team_->workers.emplace_back([team = team_.get()] { team->worker(); });
}

ThreadPool::~ThreadPool() {
  {
    const std::scoped_lock lock(team_->mutex);
    team_->stop = true;
  }
  team_->wake.notify_all();
  for (auto& worker : team_->workers) worker.join();
}

void ThreadPool::run(std::size_t tasks, const std::function<void(std::size_t)>& task) {
  if (threads_ == 1 || tasks <= 1) {
    for (std::size_t i = 0; i < tasks; ++i) task(i);
    return;
  }
  {
    const std::scoped_lock lock(team_->mutex);
    team_->task = &task;
    team_->tasks = tasks;
    team_->next.store(0, std::memory_order_relaxed);
    team_->busy = threads_ - 1;
    ++team_->region;
  }
  team_->wake.notify_all();
  team_->work_off();
  std::unique_lock lock(team_->mutex);
  team_->done.wait(lock, [&] { return team_->busy == 0; });
}

int available_cpus() noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  const int n = CPU_COUNT(&set);
  return n > 0 ? n : 1;
}

}  // namespace stet::base
