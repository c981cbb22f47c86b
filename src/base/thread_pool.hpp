// A fixed team of threads for parallel regions. Tasks are independent: which thread runs which never changes a result.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace stet::base {

class ThreadPool {
 public:
  /// `threads` >= 1, the caller included: 1 starts none. `pin`: each stays on one of the CPUs that this process may
  /// use, in turn; the caller gets its choice of CPUs back from the destructor, which must then run on the same thread.
  explicit ThreadPool(int threads, bool pin = false);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  int threads() const noexcept { return threads_; }

  /// Runs task(0) .. task(tasks - 1), fewer than 2^32, the caller taking part, and returns when all are done. A thread
  /// takes neighbouring tasks in ascending order as long as it has some of its own. One region at a time; tasks must
  /// not throw and must not start a region.
  void run(std::size_t tasks, const std::function<void(std::size_t)>& task);

 private:
  struct Team;
  int threads_;
  std::unique_ptr<Team> team_;
};

/// CPUs that this process may run on (its affinity mask), at least 1.
int available_cpus() noexcept;

}  // namespace stet::base
