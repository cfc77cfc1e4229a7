// The running launch: its threads, and what they wait for.
#pragma once

#include <array>
#include <random>
#include <utility>
#include <vector>

#include "block.h"
#include "cuda_api.h"
#include "fibre.h"
#include "shadow.h"

namespace twin {

constexpr unsigned kWarp = 32;

enum class Wait : unsigned char { kNone, kBarrier, kWarp };

struct Thread {
  void* stack = nullptr;  // stack of a suspended thread
  Wait wait = Wait::kNone;
  bool finished = false;
  // In the first thread of a warp: lanes that a warp operation waits for, and the last to arrive.
  uint8_t missing = 0, latest = 0;
  int line = 0;        // line at which it waits
  unsigned syncs = 0;  // calls of __syncwarp() that it has passed
  // The warp operation in which it waits, and its result.
  WarpOp op;
  unsigned mask;
  int lane, width;
  unsigned size;
  uint64_t bits;
  void* all;
  bool waits_with(const Thread& t) const { return line == t.line && op == t.op && mask == t.mask; }
};

// A block that waits at a barrier of the grid while others use its shared memory.
struct Aside {
  std::vector<Thread> threads;       // empty if the block has left the kernel
  std::vector<char> fixed, dynamic;  // shared memory
};

class Run {
 public:
  Run(const Launch& launch, const Memory& memory, Order& order, Shadow& shadow);

  Fault all_blocks();

  // For the running thread. at: the instruction at fault, if known.
  [[noreturn]] void fail(int code, const std::string& text, const void* at = nullptr);
  void barrier(int line, bool grid);
  uint64_t warp(WarpOp op, unsigned mask, int line, uint64_t bits, int lane, int width, void* all,
                unsigned size);
  void access(uintptr_t address, size_t bytes, bool write, const void* at);

  const Memory& memory() const { return memory_; }
  bool inside() const { return inside_; }  // a thread of the kernel runs, not the scheduler

 private:
  void fibre();
  void begin_block();
  void put_aside(Aside& aside);
  void bring_back(Aside& aside);
  void one_block();
  void one_phase(std::vector<uint64_t>& order, std::vector<Aside>& aside);
  bool all_or_none_wait(const std::vector<Aside>& aside);
  size_t fixed_shared() const;
  size_t dynamic_shared() const;
  void check_live(uintptr_t address, size_t bytes, const void* at);
  void note(Cell& cell, uintptr_t word, const Mark& mark);
  void resume(unsigned thread, void* stack);
  void leave(Wait wait, int line);
  bool awaited(unsigned first, const Thread& me);
  bool all_wait(unsigned first, const Thread& me);
  void complete_warp(unsigned first, unsigned mask);
  void release(unsigned thread);
  std::string stuck() const;
  std::string block_text() const;
  std::string thread_text(unsigned thread) const;
  unsigned size() const { return static_cast<unsigned>(places_.size()); }

  const Launch& launch_;
  const Memory& memory_;
  Order& launches_;  // and of all other operations
  Shadow& shadow_;
  std::mt19937_64 random_;
  std::vector<Index> places_;
  std::vector<unsigned> order_;  // order in which threads start
  std::vector<Thread> threads_;
  std::vector<unsigned> ready_;
  unsigned started_ = 0, finished_ = 0, arrived_ = 0, running_ = 0;
  unsigned block_ = 0;
  int barrier_line_ = 0;
  bool barrier_of_grid_ = false;  // the arrived threads wait at a barrier of the grid
  bool at_grid_barrier_ = false;  // all threads of the block wait there
  uint64_t waiting_ = 0;          // number of blocks at the barrier of the grid
  std::array<std::pair<uintptr_t, uintptr_t>, 4> live_{};  // allocations last accessed
  size_t next_live_ = 0;
  void* scheduler_ = nullptr;
  bool inside_ = false;
  Fault fault_;
  // The fault: its instruction; for a race also the earlier access and its instruction.
  const void *blame_ = nullptr, *earlier_ = nullptr;
  std::string earlier_text_;
};

// The run of the process, under the lock of the driver.
extern Run* run_;

}  // namespace twin
