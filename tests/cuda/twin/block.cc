#include "block.h"

#include <algorithm>

#include "run.h"
#include "signals.h"
#include "symbols.h"

namespace twin {

Run* run_ = nullptr;

namespace {

Stacks stacks;  // reused by later launches
constexpr uintptr_t kMostDynamic = 256 << 10;

std::string text_of(Index i) {
  return "(" + std::to_string(i.x) + ", " + std::to_string(i.y) + ", " + std::to_string(i.z) + ")";
}

Index place_of(uint64_t number, Index extents) {
  return {static_cast<unsigned>(number % extents.x),
          static_cast<unsigned>(number / extents.x % extents.y),
          static_cast<unsigned>(number / extents.x / extents.y)};
}

const Hooks kHooks = {
    [](int line, bool grid) { run_->barrier(line, grid); },
    [](WarpOp op, unsigned mask, int line, unsigned long long bits, int lane, int width, void* all,
       unsigned size) -> unsigned long long {
      return run_->warp(op, mask, line, bits, lane, width, all, size);
    },
    [](int code, const char* text, const void* at) { run_->fail(code, text, at); },
    [](const void* address, unsigned long bytes, bool write, const void* at) {
      run_->access(reinterpret_cast<uintptr_t>(address), bytes, write, at);
    },
};

}  // namespace

Run::Run(const Launch& launch, const Memory& memory, Order& order, Shadow& shadow)
    : launch_(launch), memory_(memory), launches_(order), shadow_(shadow), random_(launch.seed) {
  const Index b = launch.block;
  for (unsigned z = 0; z < b.z; ++z)
    for (unsigned y = 0; y < b.y; ++y)
      for (unsigned x = 0; x < b.x; ++x) places_.push_back({x, y, z});
}

std::string Run::block_text() const {
  return "kernel " + std::string(launch_.kernel->name) + ", block " +
         text_of(*launch_.module->block);
}

std::string Run::thread_text(unsigned thread) const { return "thread " + text_of(places_[thread]); }

// Run threads in turn until one of them waits; without barriers, to the end.
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

void Run::fail(int code, const std::string& text, const void* at) {
  fault_ = {code, block_text() + ", " + thread_text(running_) + ": " + text};
  blame_ = at;
  void* abandoned;
  twin_switch(&abandoned, scheduler_);
  __builtin_unreachable();
}

void Run::note(Cell& cell, uintptr_t word, const Mark& mark) {
  const Mark earlier = shadow_.note(cell, mark);
  if (earlier.epoch == 0) return;
  const char* const image = launch_.module->image;
  earlier_ = image + earlier.at;
  const uint32_t block = shadow_.block_of(earlier.epoch);
  earlier_text_ = "; " +
                  (block == block_ ? std::string("no barrier parts it from ")
                                   : "block " + text_of(place_of(block, launch_.grid)) + ", ") +
                  thread_text(earlier.thread) + ", which " + (earlier.write ? "wrote" : "read") +
                  " it";
  fail(kLaunchFailed,
       std::string("a race: it ") + (mark.write ? "writes " : "reads ") +
           (mark.shared ? std::string("shared memory") : memory_.describe(word)),
       image + mark.at);
}

void Run::access(uintptr_t address, size_t bytes, bool write, const void* at) {
  // Addresses so close, the size of a stack, are the thread's own; a module, or the memory of the
  // device, may be mapped next to a stack.
  constexpr uintptr_t kNear = 64 << 10;
  const Module& module = *launch_.module;
  const auto start = [](const char* from) { return reinterpret_cast<uintptr_t>(from); };
  const bool device = memory_.in_region(address);
  const bool fixed =
      address - start(module.shared) < start(module.shared_end) - start(module.shared);
  const bool dynamic = address - start(module.dynamic) < module.dynamic_size;
  const uintptr_t here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  if (!device && !fixed && !dynamic && address - here + kNear < 2 * kNear) return;
  uintptr_t shared = 0;  // offset of the word in static, then dynamic shared memory
  if (device) {
    check_live(address, bytes, at);
    if (launches_.on()) {
      const std::string race = launches_.access(address, bytes, write);
      if (!race.empty()) fail(kLaunchFailed, race, at);
    }
  } else if (fixed) {
    shared = address - start(module.shared) / 4 * 4 + kMostDynamic;
  } else if (dynamic) {
    if (address - start(module.dynamic) + bytes > launch_.dynamic_shared)
      fail(kIllegalAddress,
           "access beyond the " + std::to_string(launch_.dynamic_shared) +
               " bytes of dynamic shared memory",
           at);
    shared = address - start(module.dynamic);
  } else if (address - start(module.image) < start(module.shared) - start(module.image)) {
    return;  // constants, threadIdx
  } else if (memory_.pinned(address, bytes)) {
    return;
  } else {
    fail(kIllegalAddress, "access to " + memory_.describe(address), at);
  }
  Mark mark = {shadow_.epoch(), threads_[running_].syncs,
               static_cast<uint32_t>(static_cast<const char*>(at) - module.image),
               static_cast<uint16_t>(running_)};
  mark.write = write;
  mark.shared = !device;
  for (size_t i = 0; i < bytes;) {
    const size_t first = (address + i) % 4, count = std::min(4 - first, bytes - i);
    mark.bytes = static_cast<uint8_t>(((1u << count) - 1u) << first);
    note(device ? shadow_.device(address + i) : shadow_.shared(shared + i), address + i, mark);
    i += count;
  }
}

// Allocations stay while a launch runs, and most accesses are to the few that were used last.
void Run::check_live(uintptr_t address, size_t bytes, const void* at) {
  for (const auto& [begin, end] : live_)
    if (address >= begin && address < end && bytes <= end - address) return;
  const auto found = memory_.allocation(address, bytes);
  if (!found) fail(kIllegalAddress, "access to " + memory_.describe(address), at);
  live_[next_live_++ % live_.size()] = *found;
}

void Run::release(unsigned thread) {
  threads_[thread].wait = Wait::kNone;
  ready_.push_back(thread);
}

size_t Run::fixed_shared() const {
  return static_cast<size_t>(launch_.module->shared_end - launch_.module->shared);
}

size_t Run::dynamic_shared() const {
  return std::min(launch_.module->dynamic_size, launch_.dynamic_shared);
}

void Run::begin_block() {
  poison(launch_.module->shared, fixed_shared());
  poison(launch_.module->dynamic, dynamic_shared());
  threads_.assign(size(), Thread{});
  started_ = finished_ = 0;
  if (!launch_.cooperative) stacks.reuse_all();
  if (launch_.seed != 0) std::shuffle(order_.begin(), order_.end(), random_);
}

void Run::put_aside(Aside& aside) {
  const Module& module = *launch_.module;
  aside.threads.swap(threads_);
  aside.fixed.assign(module.shared, module.shared + fixed_shared());
  aside.dynamic.assign(module.dynamic, module.dynamic + dynamic_shared());
}

void Run::bring_back(Aside& aside) {
  threads_.swap(aside.threads);
  aside.threads.clear();
  std::copy(aside.fixed.begin(), aside.fixed.end(), launch_.module->shared);
  std::copy(aside.dynamic.begin(), aside.dynamic.end(), launch_.module->dynamic);
  started_ = size();
  finished_ = 0;
  for (unsigned t = size(); t-- > 0;) release(t);  // the last released runs first
}

// Run a block until all of its threads have left the kernel or wait at a barrier of the grid.
void Run::one_block() {
  while (finished_ < size() && !at_grid_barrier_ && fault_.code == 0) {
    if (ready_.empty() && started_ == size()) {
      fault_ = {kLaunchFailed, block_text() + ": " + stuck()};
    } else if (started_ < size() && (ready_.empty() || (launch_.seed != 0 && random_() % 2 == 0))) {
      resume(order_[started_], stacks.take([] { run_->fibre(); }));
    } else {
      size_t next = ready_.size() - 1;
      if (launch_.seed != 0) std::swap(ready_[next], ready_[random_() % ready_.size()]);
      const unsigned thread = ready_[next];
      ready_.pop_back();
      resume(thread, threads_[thread].stack);
    }
  }
}

// Run every block once, up to a barrier of the grid or to its end.
void Run::one_phase(std::vector<uint64_t>& order, std::vector<Aside>& aside) {
  const bool first = waiting_ == 0;
  const uint64_t blocks = uint64_t{launch_.grid.x} * launch_.grid.y * launch_.grid.z;
  std::shuffle(order.begin(), order.end(), random_);
  waiting_ = 0;
  for (uint64_t i = 0; i < blocks && fault_.code == 0; ++i) {
    const uint64_t b = order.empty() ? i : order[i];
    *launch_.module->block = place_of(b, launch_.grid);
    block_ = static_cast<unsigned>(b);
    ready_.clear();
    shadow_.begin_epoch(block_);
    arrived_ = 0;
    at_grid_barrier_ = false;
    if (first) {
      begin_block();
    } else {
      bring_back(aside[b]);
    }
    one_block();
    if (!at_grid_barrier_) continue;
    put_aside(aside[b]);
    ++waiting_;
  }
}

// True if the blocks of the launch can go on; otherwise one waits for another that has left.
bool Run::all_or_none_wait(const std::vector<Aside>& aside) {
  if (waiting_ == 0 || waiting_ == aside.size()) return true;
  const auto find = [&](bool waits) {
    const auto found = std::find_if(aside.begin(), aside.end(),
                                    [waits](const Aside& a) { return a.threads.empty() != waits; });
    return static_cast<uint64_t>(found - aside.begin());
  };
  const uint64_t waits = find(true);
  *launch_.module->block = place_of(waits, launch_.grid);
  fault_ = {kLaunchFailed, block_text() + ": its threads wait at twin::grid_barrier() in line " +
                               std::to_string(aside[waits].threads[0].line) + ", block " +
                               text_of(place_of(find(false), launch_.grid)) +
                               " has left the kernel"};
  return false;
}

Fault Run::all_blocks() {
  const Module& module = *launch_.module;
  order_.resize(size());
  for (unsigned t = 0; t < size(); ++t) order_[t] = t;
  const uint64_t blocks = uint64_t{launch_.grid.x} * launch_.grid.y * launch_.grid.z;
  std::vector<uint64_t> order(launch_.seed == 0 ? 0 : blocks);
  for (uint64_t i = 0; i < order.size(); ++i) order[i] = i;
  std::vector<Aside> aside(launch_.cooperative ? blocks : 0);
  if (aside.size() * size() > Stacks::kMost)
    return {kLaunchOutOfResources, "kernel " + std::string(launch_.kernel->name) +
                                       ": a cooperative launch of more than the " +
                                       std::to_string(Stacks::kMost) +
                                       " threads that the twin has stacks for"};
  const size_t dynamic = module.dynamic_size;
  poison(module.dynamic, dynamic);
  stacks.reuse_all();
  one_phase(order, aside);
  while (fault_.code == 0 && all_or_none_wait(aside) && waiting_ != 0) {
    shadow_.pass_grid_barrier();
    one_phase(order, aside);
  }
  const size_t asked = (launch_.dynamic_shared + 3) / 4 * 4;  // in whole words of poison
  if (fault_.code == 0 && dynamic > asked && !poisoned(module.dynamic + asked, dynamic - asked))
    fault_ = {kIllegalAddress, "kernel " + std::string(launch_.kernel->name) +
                                   ": a write beyond the " +
                                   std::to_string(launch_.dynamic_shared) +
                                   " bytes of dynamic shared memory it was launched with"};
  if (blame_ != nullptr) fault_.text += place_text(blame_);
  if (earlier_ != nullptr) fault_.text += earlier_text_ + place_text(earlier_);
  return fault_;
}

Fault run(const Launch& launch, const Memory& memory, Order& order) {
  static Shadow shadow;  // reused by later launches
  const Module& module = *launch.module;
  *module.hooks = kHooks;
  *module.block_dim = launch.block;
  *module.grid_dim = launch.grid;
  shadow.begin(memory, module.checked);
  Run run(launch, memory, order, shadow);
  run_ = &run;
  const Signals signals;
  return run.all_blocks();
}

}  // namespace twin
