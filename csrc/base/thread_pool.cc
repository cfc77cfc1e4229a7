#include "base/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/config_error.h"
#include "base/openmp.h"
#include "base/processors.h"

namespace cavs {
namespace {

// Spin long enough to bridge the Python code between two runs on one small graph, where waking a
// thread would take longer; short enough not to hold a core that another process needs.
constexpr std::chrono::microseconds kSpin{150};

thread_local bool t_inside = false;

void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Wait until `value` is no longer `old`: spin, then sleep on it.
template <class T>
void wait_for_change(const std::atomic<T>& value, T old) {
  for (int i = 0; i < 64; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause_core();
  }
  const auto end = std::chrono::steady_clock::now() + kSpin;
  while (std::chrono::steady_clock::now() < end) {
    for (int i = 0; i < 16; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      pause_core();
    }
  }
  value.wait(old, std::memory_order_acquire);
}

struct InsideRegion {
  InsideRegion() { t_inside = true; }
  ~InsideRegion() { t_inside = false; }
};

using Function = void (*)(void*, int);

// The exceptions of the tasks of a region.
class Errors {
 public:
  explicit Errors(int num_threads) : errors_(static_cast<size_t>(num_threads)) {}

  void call(Function function, void* task, int t) noexcept {
    try {
      function(task, t);
    } catch (...) {
      errors_[static_cast<size_t>(t)] = std::current_exception();
    }
  }

  // Rethrow the exception of the lowest of `num_tasks` tasks that threw, and forget all.
  void rethrow(int num_tasks) {
    std::exception_ptr first;
    for (int t = num_tasks - 1; t >= 0; --t) {
      std::exception_ptr& error = errors_[static_cast<size_t>(t)];
      if (error) first = error;
      error = nullptr;
    }
    if (first) std::rethrow_exception(first);
  }

 private:
  std::vector<std::exception_ptr> errors_;
};

// The worker threads for one setting of the number of threads.
class Team {
 public:
  explicit Team(int num_threads)
      : workers_(static_cast<size_t>(num_threads)), errors_(num_threads) {
    try {
      for (size_t t = 1; t < workers_.size(); ++t)
        workers_[t].thread = std::thread([this, t] { work(static_cast<int>(t)); });
    } catch (...) {  // no more threads: without a join the running ones would end the process
      stop();
      throw;
    }
  }
  ~Team() { stop(); }

  void run(int num_tasks, void* task, Function function) {
    const InsideRegion inside;
    task_ = task;
    function_ = function;
    remaining_.store(num_tasks - 1, std::memory_order_relaxed);
    for (int t = 1; t < num_tasks; ++t) wake(workers_[static_cast<size_t>(t)]);
    errors_.call(function, task, 0);
    for (int left; (left = remaining_.load(std::memory_order_acquire)) > 0;)
      wait_for_change(remaining_, left);
    errors_.rethrow(num_tasks);
  }

 private:
  void stop() {
    stopping_ = true;
    for (Worker& worker : workers_) wake(worker);
    for (Worker& worker : workers_)
      if (worker.thread.joinable()) worker.thread.join();
  }

  struct alignas(64) Worker {
    std::atomic<uint32_t> regions{0};  // bumped to start the worker on a region, or to stop it
    std::thread thread;
  };

  static void wake(Worker& worker) {
    worker.regions.fetch_add(1, std::memory_order_release);
    worker.regions.notify_one();
  }

  void work(int t) {
    const InsideRegion inside;
    Worker& self = workers_[static_cast<size_t>(t)];
    for (uint32_t seen = 0;; ++seen) {
      wait_for_change(self.regions, seen);
      if (stopping_) return;
      errors_.call(function_, task_, t);
      if (remaining_.fetch_sub(1, std::memory_order_acq_rel) == 1) remaining_.notify_one();
    }
  }

  std::vector<Worker> workers_;  // [0] is the calling thread
  Errors errors_;
  bool stopping_ = false;
  void* task_ = nullptr;
  Function function_ = nullptr;
  alignas(64) std::atomic<int> remaining_{0};
};

// Run a region on the threads of `runtime`, which has at least `num_tasks` of them. All take part,
// because runtimes end threads that a region does not need.
void run_on(const OpenMpRuntime& runtime, int num_tasks, void* task, Function function,
            Errors& errors) {
  struct Region {
    const OpenMpRuntime& runtime;
    const int num_tasks;
    void* const task;
    const Function function;
    Errors& errors;
  } region{runtime, num_tasks, task, function, errors};
  runtime.parallel(
      runtime.region_threads(),
      [](void* argument) {
        const Region& own = *static_cast<const Region*>(argument);
        const int t = own.runtime.thread_number();
        if (t >= own.num_tasks) return;
        const InsideRegion inside;
        own.errors.call(own.function, own.task, t);
      },
      &region);
  errors.rethrow(num_tasks);
}

}  // namespace

void SpinBarrier::wait() {
  const uint32_t phase = phase_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == parties_) {
    arrived_.store(
        0, std::memory_order_relaxed);  // before the phase changes: no thread arrives until then
    phase_.store(phase + 1, std::memory_order_release);
    phase_.notify_all();
  } else {
    wait_for_change(phase_, phase);
  }
}

struct ThreadPool::State {
  std::mutex region;  // held while a region runs
  std::atomic<int> num_threads{0};
  std::unique_ptr<Team> team;  // created by the first region: importing the engine starts no thread
  std::unique_ptr<const OpenMpRuntime> runtime;
  std::optional<Errors> errors;  // in regions on the runtime's threads
};

ThreadPool::ThreadPool(int num_threads) : state_(new State) { set_num_threads(num_threads); }
ThreadPool::~ThreadPool() { delete state_; }

bool ThreadPool::inside_region() { return t_inside; }
int ThreadPool::num_threads() const { return state_->num_threads.load(); }

void ThreadPool::abandon() {
  const int n = num_threads();
  state_ = new State;  // leaks the old one: its threads are gone and its locks cannot be released
  state_->num_threads = n;
}

void ThreadPool::set_num_threads(int n) {
  if (n < 1 || n > kMaxThreads)
    throw ConfigError("the number of threads must be from 1 to " + std::to_string(kMaxThreads) +
                          ", not " + std::to_string(n),
                      "more threads than cores do not help");
  if (t_inside) throw std::logic_error("the number of threads cannot change in a parallel region");
  const std::lock_guard lock(state_->region);
  if (state_->num_threads == n) return;
  state_->team.reset();
  state_->errors.reset();
  state_->num_threads = n;
}

bool ThreadPool::use_openmp_of(const std::string& library) {
  if (t_inside) throw std::logic_error("the threads cannot change in a parallel region");
  const std::lock_guard lock(state_->region);
  state_->runtime = OpenMpRuntime::find(library);
  return state_->runtime != nullptr;
}

void ThreadPool::run(int num_tasks, void* task, Function function, int* granted) {
  if (granted != nullptr && t_inside) num_tasks = *granted = 1;
  if (num_tasks <= 1 || t_inside) {
    for (int t = 0; t < num_tasks; ++t) function(task, t);
    return;
  }
  State& s = *state_;
  const std::lock_guard lock(s.region);
  if (granted != nullptr) num_tasks = *granted = std::min<int>(num_tasks, s.num_threads);
  if (num_tasks > s.num_threads)
    throw std::invalid_argument(std::to_string(num_tasks) + " tasks for " +
                                std::to_string(s.num_threads) + " threads");
  if (s.runtime != nullptr && num_tasks <= s.runtime->region_threads()) {
    if (!s.errors) s.errors.emplace(s.num_threads);
    run_on(*s.runtime, num_tasks, task, function, *s.errors);
    return;
  }
  if (s.team == nullptr) s.team = std::make_unique<Team>(s.num_threads);
  s.team->run(num_tasks, task, function);
}

ThreadPool& thread_pool() {
  // Never destroyed: at exit the workers sleep, and no thread waits for them.
  static ThreadPool* pool = [] {
    static ThreadPool* made = new ThreadPool(default_num_threads());
    pthread_atfork(nullptr, nullptr, [] { made->abandon(); });
    return made;
  }();
  return *pool;
}

}  // namespace cavs
