#include "block.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "cuda_api.h"
#include "fibre.h"

namespace twin {

namespace {

constexpr unsigned kWarp = 32;

enum class Wait : unsigned char { kNone, kBarrier, kWarp };

struct Thread {
  void* stack = nullptr;  // of a thread that was left
  Wait wait = Wait::kNone;
  bool finished = false;
  int line = 0;  // where it waits
  // The warp operation it waits in, and its result.
  WarpOp op;
  unsigned mask;
  int lane, width;
  unsigned size;
  uint64_t bits;
  void* all;
};

std::string text_of(Index i) {
  return "(" + std::to_string(i.x) + ", " + std::to_string(i.y) + ", " + std::to_string(i.z) + ")";
}

// The launch that runs. One at a time in a process: the driver holds its lock.
class Run {
 public:
  Run(const Launch& launch, const Describe& describe)
      : launch_(launch), describe_(describe), random_(launch.seed) {
    const Index b = launch.block;
    for (unsigned z = 0; z < b.z; ++z)
      for (unsigned y = 0; y < b.y; ++y)
        for (unsigned x = 0; x < b.x; ++x) places_.push_back({x, y, z});
  }

  Fault all_blocks();
  void fail(int code, const std::string& text);  // of the running thread; does not return

  void fibre();
  void barrier(int line);
  uint64_t warp(WarpOp op, unsigned mask, int line, uint64_t bits, int lane, int width, void* all,
                unsigned size);

  std::string describe(uintptr_t address) const { return describe_(address); }
  bool inside() const { return inside_; }

 private:
  void one_block();
  void resume(unsigned thread, void* stack);
  void leave(Wait wait, int line);
  void complete_warp(unsigned first, unsigned mask);
  void release(unsigned thread);
  std::string stuck() const;
  unsigned size() const { return static_cast<unsigned>(places_.size()); }

  const Launch& launch_;
  const Describe& describe_;
  std::mt19937_64 random_;
  std::vector<Index> places_;
  std::vector<unsigned> order_;  // in which threads start
  std::vector<Thread> threads_;
  std::vector<unsigned> ready_;
  unsigned started_ = 0, finished_ = 0, arrived_ = 0, running_ = 0;
  int barrier_line_ = 0;
  void* scheduler_ = nullptr;
  bool inside_ = false;  // a thread of the kernel runs, not the scheduler
  Fault fault_;
};

Run* run_ = nullptr;
pthread_t runner_;
Stacks stacks_;  // kept from launch to launch

void Run::fibre() {
  while (started_ < size()) {
    running_ = order_[started_++];
    *launch_.module->thread = places_[running_];
    launch_.kernel->run(launch_.parameters);
    threads_[running_].finished = true;
    ++finished_;
  }
  leave(Wait::kNone, 0);
}

void Run::resume(unsigned thread, void* stack) {
  running_ = thread;
  *launch_.module->thread = places_[thread];
  inside_ = true;
  twin_switch(&scheduler_, stack);
  inside_ = false;
}

void Run::leave(Wait wait, int line) {
  Thread& thread = threads_[running_];
  thread.wait = wait;
  thread.line = line;
  twin_switch(&thread.stack, scheduler_);
}

void Run::fail(int code, const std::string& text) {
  fault_ = {code, std::string("kernel ") + launch_.kernel->name + ", block " +
                      text_of(*launch_.module->block) + ", thread " + text_of(places_[running_]) +
                      ": " + text};
  void* abandoned;
  twin_switch(&abandoned, scheduler_);
}

void Run::release(unsigned thread) {
  threads_[thread].wait = Wait::kNone;
  ready_.push_back(thread);
}

void Run::barrier(int line) {
  if (arrived_ == 0) barrier_line_ = line;
  if (line != barrier_line_)
    fail(kLaunchFailed, "__syncthreads() in line " + std::to_string(line) +
                            ", while other threads wait in that of line " +
                            std::to_string(barrier_line_));
  const bool complete = ++arrived_ == size();
  if (complete) {
    arrived_ = 0;
    for (unsigned t = size(); t-- > 0;) release(t);  // the last released goes on first
  }
  leave(complete ? Wait::kNone : Wait::kBarrier, line);
}

uint64_t Run::warp(WarpOp op, unsigned mask, int line, uint64_t bits, int lane, int width,
                   void* all, unsigned size) {
  const unsigned first = running_ / kWarp * kWarp;
  Thread& me = threads_[running_];
  if (!(mask >> (running_ - first) & 1u))
    fail(kLaunchFailed, "line " + std::to_string(line) +
                            ": the mask of a warp operation leaves out "
                            "the lane that calls it");
  if (width <= 0 || width > 32 || (width & (width - 1)) != 0)
    fail(kLaunchFailed,
         "line " + std::to_string(line) + ": a shuffle over " + std::to_string(width) + " lanes");
  me.op = op, me.mask = mask, me.lane = lane, me.width = width, me.size = size, me.bits = bits;
  me.all = all, me.line = line;
  me.wait = Wait::kWarp;
  bool complete = true;
  for (unsigned i = 0; i < kWarp; ++i) {
    if (!(mask >> i & 1u)) continue;
    const unsigned t = first + i;
    if (t >= this->size() || threads_[t].finished)
      fail(kLaunchFailed, "line " + std::to_string(line) + ": a warp operation waits for lane " +
                              std::to_string(i) + ", which " +
                              (t >= this->size() ? "is not in the block" : "has left the kernel"));
    if (threads_[t].wait != Wait::kWarp) {
      complete = false;
    } else if (threads_[t].line != line || threads_[t].op != op || threads_[t].mask != mask) {
      fail(kLaunchFailed, "lanes of one warp meet in different warp operations: lines " +
                              std::to_string(line) + " and " + std::to_string(threads_[t].line));
    }
  }
  if (complete) complete_warp(first, mask);
  leave(complete ? Wait::kNone : Wait::kWarp, line);
  return me.bits;
}

void Run::complete_warp(unsigned first, unsigned mask) {
  uint64_t values[kWarp] = {};
  unsigned ballot = 0;
  for (unsigned i = 0; i < kWarp; ++i) {
    if (!(mask >> i & 1u)) {
      poison(&values[i], sizeof values[i]);  // what a lane outside of the mask holds is undefined
      continue;
    }
    values[i] = threads_[first + i].bits;
    ballot |= static_cast<unsigned>(values[i] & 1u) << i;
  }
  for (unsigned i = kWarp; i-- > 0;) {  // the last released goes on first
    if (!(mask >> i & 1u)) continue;
    Thread& thread = threads_[first + i];
    const int low = static_cast<int>(i) & ~(thread.width - 1), high = low + thread.width;
    int from = static_cast<int>(i);
    switch (thread.op) {
      case WarpOp::kSync:
        break;
      case WarpOp::kGet:
        from = low + (thread.lane & (thread.width - 1));
        break;
      case WarpOp::kUp:
        from -= thread.lane;
        break;
      case WarpOp::kDown:
        from += thread.lane;
        break;
      case WarpOp::kXor:
        from ^= thread.lane;
        break;
      case WarpOp::kBallot:
        break;
      case WarpOp::kGather:
        for (unsigned j = 0; j < kWarp; ++j)
          std::memcpy(static_cast<char*>(thread.all) + j * thread.size,
                      reinterpret_cast<const void*>(values[j]), thread.size);
        break;
    }
    const bool outside = thread.op == WarpOp::kXor ? from >= high : from < low || from >= high;
    if (outside || from < 0 || from >= 32) from = static_cast<int>(i);
    thread.bits = thread.op == WarpOp::kBallot ? ballot : values[from];
    release(first + i);
  }
}

std::string Run::stuck() const {
  const auto waits = [this](Wait wait) {
    return std::find_if(threads_.begin(), threads_.end(),
                        [wait](const Thread& t) { return t.wait == wait && !t.finished; });
  };
  const auto number = [this](auto at) {
    return text_of(places_[static_cast<size_t>(at - threads_.begin())]);
  };
  const auto barrier = waits(Wait::kBarrier), warp = waits(Wait::kWarp);
  const auto gone =
      std::find_if(threads_.begin(), threads_.end(), [](const Thread& t) { return t.finished; });
  std::string text = "kernel " + std::string(launch_.kernel->name) + ", block " +
                     text_of(*launch_.module->block) + ": ";
  if (barrier != threads_.end())
    text += "thread " + number(barrier) + " waits at __syncthreads() in line " +
            std::to_string(barrier->line);
  if (warp != threads_.end())
    text += (barrier == threads_.end() ? "thread " : ", thread ") + number(warp) +
            " in a warp operation in line " + std::to_string(warp->line);
  if (gone != threads_.end()) text += ", thread " + number(gone) + " has left the kernel";
  return text;
}

void Run::one_block() {
  threads_.assign(size(), Thread{});
  ready_.clear();
  stacks_.reuse_all();
  started_ = finished_ = arrived_ = 0;
  if (launch_.seed != 0) std::shuffle(order_.begin(), order_.end(), random_);
  while (finished_ < size() && fault_.code == 0) {
    if (ready_.empty() && started_ == size()) {
      fault_ = {kLaunchFailed, stuck()};
    } else if (started_ < size() && (ready_.empty() || (launch_.seed != 0 && random_() % 2 == 0))) {
      resume(order_[started_], stacks_.take([] { run_->fibre(); }));
    } else {
      size_t next = ready_.size() - 1;
      if (launch_.seed != 0) std::swap(ready_[next], ready_[random_() % ready_.size()]);
      const unsigned thread = ready_[next];
      ready_.pop_back();
      resume(thread, threads_[thread].stack);
    }
  }
}

Fault Run::all_blocks() {
  const Module& module = *launch_.module;
  order_.resize(size());
  for (unsigned t = 0; t < size(); ++t) order_[t] = t;
  const uint64_t blocks = uint64_t{launch_.grid.x} * launch_.grid.y * launch_.grid.z;
  std::vector<uint64_t> order(launch_.seed == 0 ? 0 : blocks);
  for (uint64_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random_);
  const size_t dynamic = module.dynamic_size;
  poison(module.dynamic, dynamic);
  for (uint64_t i = 0; i < blocks && fault_.code == 0; ++i) {
    const uint64_t b = order.empty() ? i : order[i];
    *module.block = {static_cast<unsigned>(b % launch_.grid.x),
                     static_cast<unsigned>(b / launch_.grid.x % launch_.grid.y),
                     static_cast<unsigned>(b / launch_.grid.x / launch_.grid.y)};
    poison(module.shared, static_cast<size_t>(module.shared_end - module.shared));
    poison(module.dynamic, std::min<size_t>(dynamic, launch_.dynamic_shared));
    one_block();
  }
  const size_t asked = (launch_.dynamic_shared + 3) / 4 * 4;  // of whole words of poison
  if (fault_.code == 0 && dynamic > asked && !poisoned(module.dynamic + asked, dynamic - asked))
    fault_ = {kIllegalAddress, "kernel " + std::string(launch_.kernel->name) +
                                   ": a write beyond the " +
                                   std::to_string(launch_.dynamic_shared) +
                                   " bytes of dynamic shared memory it was launched with"};
  return fault_;
}

const Hooks kHooks = {
    [](int line) { run_->barrier(line); },
    [](WarpOp op, unsigned mask, int line, unsigned long long bits, int lane, int width, void* all,
       unsigned size) -> unsigned long long {
      return run_->warp(op, mask, line, bits, lane, width, all, size);
    },
    [](const char* text) { run_->fail(kLaunchFailed, text); },
};

// Turns a signal of a kernel into a fault of the launch; those of anybody else go their usual way.
class Signals {
 public:
  Signals() {
    stack_t stack = {};
    stack.ss_sp = memory_;
    stack.ss_size = sizeof memory_;
    sigaltstack(&stack, &old_stack_);
    struct sigaction action = {};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < kCount; ++i) sigaction(kSignals[i], &action, &old_[i]);
  }
  ~Signals() {
    for (size_t i = 0; i < kCount; ++i) sigaction(kSignals[i], &old_[i], nullptr);
    sigaltstack(&old_stack_, nullptr);
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

 private:
  static constexpr size_t kCount = 3;
  static constexpr int kSignals[kCount] = {SIGSEGV, SIGBUS, SIGFPE};

  static void handle(int signal, siginfo_t* info, void*) {
    if (!pthread_equal(pthread_self(), runner_) || !run_->inside()) {
      for (size_t i = 0; i < kCount; ++i)
        if (kSignals[i] == signal) sigaction(signal, &old_[i], nullptr);
      return;  // the access is made again and meets the handler from before
    }
    // Leaves the handler for the scheduler and never comes back: the thread's stack is abandoned.
    if (signal == SIGFPE) run_->fail(kLaunchFailed, "an integer is divided by zero");
    const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
    run_->fail(kIllegalAddress, "access to " + run_->describe(address));
  }

  static struct sigaction old_[kCount];
  static char memory_[64 << 10];
  stack_t old_stack_ = {};
};
struct sigaction Signals::old_[kCount];
alignas(16) char Signals::memory_[64 << 10];

constexpr uint32_t kPoison = 0x7FFEFFFEu;

}  // namespace

Fault run(const Launch& launch, const Describe& describe) {
  const Module& module = *launch.module;
  *module.hooks = &kHooks;
  *module.block_dim = launch.block;
  *module.grid_dim = launch.grid;
  Run run(launch, describe);
  run_ = &run;
  runner_ = pthread_self();
  const Signals signals;
  return run.all_blocks();
}

void poison(void* address, size_t bytes) {
  char* to = static_cast<char*>(address);
  for (size_t i = 0; i + 4 <= bytes; i += 4) std::memcpy(to + i, &kPoison, 4);
  std::memcpy(to + bytes / 4 * 4, &kPoison, bytes % 4);
}

bool poisoned(const void* address, size_t bytes) {
  const char* from = static_cast<const char*>(address);
  for (size_t i = 0; i < bytes; i += 4)
    if (std::memcmp(from + i, &kPoison, std::min<size_t>(4, bytes - i)) != 0) return false;
  return true;
}

}  // namespace twin
