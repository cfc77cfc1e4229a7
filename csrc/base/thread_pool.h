// One pool of threads for the whole process. A parallel region costs about a microsecond: workers
// spin a little before they sleep, and nothing is allocated.
#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "base/processors.h"

namespace cavs {

// Waiting inside a parallel region: everybody goes on when `parties` threads have arrived. It may
// be used again at once. Spins while there is a core a thread, else lets others run.
class SpinBarrier {
 public:
  explicit SpinBarrier(int parties) : parties_(parties) {}
  SpinBarrier(const SpinBarrier&) = delete;
  SpinBarrier& operator=(const SpinBarrier&) = delete;

  void wait();
  int parties() const { return parties_; }

 private:
  const int parties_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
};

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // 1 <= n <= kMaxThreads, else ConfigError. Waits for a running region to end; called
  // from inside a region it throws std::logic_error.
  void set_num_threads(int n);
  int num_threads() const;

  // Runs task(0) .. task(num_tasks - 1), task t on thread t; the caller is thread 0. They run at
  // the same time, so they may wait for each other by a SpinBarrier. More tasks than num_threads()
  // throw std::invalid_argument. Regions that different threads open take turns; inside a region
  // (see inside_region) the tasks run one after the other and must not wait for each other. When
  // all have ended, the exception of the lowest task that threw is thrown again here.
  template <class F>
    requires std::invocable<F&, int>
  void parallel(int num_tasks, F&& task) {
    run(num_tasks, const_cast<void*>(static_cast<const void*>(std::addressof(task))),
        [](void* f, int t) { (*static_cast<std::remove_reference_t<F>*>(f))(t); });
  }

  // The same with at most `most` threads, as many as there still are when the region begins: runs
  // task(0, n) .. task(n - 1, n). Inside a region n is 1.
  template <class F>
    requires std::invocable<F&, int, int>
  void parallel_up_to(int most, F&& task) {
    int count = most;
    auto each = [&](int t) { task(t, count); };
    run(most, &each, [](void* f, int t) { (*static_cast<decltype(each)*>(f))(t); }, &count);
  }

  // Whether the calling thread is inside a region: a parallel() here would run serially.
  static bool inside_region();

 private:
  using Function = void (*)(void*, int);
  struct State;
  friend ThreadPool& thread_pool();
  void run(int num_tasks, void* task, Function function, int* granted = nullptr);
  void abandon();  // in a forked child: the workers are gone, and with them whoever held a lock

  State* state_;
};

// The pool of the process, made on first use with default_num_threads() threads; a forked child
// gets a new one.
ThreadPool& thread_pool();

}  // namespace cavs
