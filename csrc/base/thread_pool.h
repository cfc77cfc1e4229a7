// The thread pool of the process. A parallel region costs about a microsecond: workers spin a
// little before they sleep, and nothing is allocated.
#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include "base/processors.h"

namespace cavs {

// Barrier inside a parallel region: threads continue when `parties` of them have arrived. Reusable
// at once. It spins while there is a core per thread, else yields.
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

  // 1 <= n <= kMaxThreads, else ConfigError. Waits for a running region to end; throws
  // std::logic_error if called from inside a region.
  void set_num_threads(int n);
  int num_threads() const;

  // Run regions on the threads of the OpenMP runtime that the loaded library `library` uses, where
  // it has enough of them. False if there is none; then regions run on threads of this pool. A
  // forked child has threads of its own: those of the runtime exist in the parent alone.
  bool use_openmp_of(const std::string& library);

  // Run task(0) .. task(num_tasks - 1), task t on thread t; the caller is thread 0. Tasks run at
  // the same time, so they may wait for each other through a SpinBarrier. More tasks than
  // num_threads() throw std::invalid_argument. Regions opened by different threads run one after
  // the other; inside a region (see inside_region) tasks run serially and must not wait for each
  // other. After all have ended, the exception of the lowest task that threw is rethrown.
  template <class F>
    requires std::invocable<F&, int>
  void parallel(int num_tasks, F&& task) {
    run(num_tasks, const_cast<void*>(static_cast<const void*>(std::addressof(task))),
        [](void* f, int t) { (*static_cast<std::remove_reference_t<F>*>(f))(t); });
  }

  // The same with at most `most` threads, as many as the pool has when the region begins: runs
  // task(0, n) .. task(n - 1, n). Inside a region n is 1.
  template <class F>
    requires std::invocable<F&, int, int>
  void parallel_up_to(int most, F&& task) {
    int count = most;
    auto each = [&](int t) { task(t, count); };
    run(most, &each, [](void* f, int t) { (*static_cast<decltype(each)*>(f))(t); }, &count);
  }

  // True if the calling thread is inside a region: parallel() would run serially.
  static bool inside_region();

 private:
  using Function = void (*)(void*, int);
  struct State;
  friend ThreadPool& thread_pool();
  void run(int num_tasks, void* task, Function function, int* granted = nullptr);
  void abandon();  // in a forked child: the worker threads, and owners of locks, no longer exist

  State* state_;
};

// The pool of the process, created on first use with default_num_threads() threads; a forked child
// gets a new one.
ThreadPool& thread_pool();

}  // namespace cavs
