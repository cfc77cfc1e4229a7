// The last accesses to each word of memory in a launch, to find accesses of two threads that no
// barrier orders.
#pragma once

#include <cstdint>
#include <vector>

#include "memory.h"
#include "module.h"

namespace twin {

// An access of a thread, timed by the barriers of its block and its warp that it has passed.
struct Mark {
  uint32_t launch = 0;  // or phase of a launch; 0: none
  uint32_t block = 0, barriers = 0, syncs = 0;
  uint16_t thread = 0;
  uint8_t bytes = 0;                   // bytes of the word, one bit each
  bool write = false, shared = false;  // shared: in shared memory
  uint32_t at = 0;                     // instruction, relative to the module

  bool ordered_before(const Mark& later) const;
  bool same_moment(const Mark& other) const {
    return block == other.block && thread == other.thread && barriers == other.barriers &&
           syncs == other.syncs;
  }
};

// The last write of a word and two of its last reads, of different threads if possible.
struct Cell {
  Mark write, reads[2];
};

class Shadow {
 public:
  // Start a launch. checked: accesses will be recorded.
  void begin(const Memory& memory, bool checked);
  // All threads of all blocks passed a barrier: the rest is like a separate launch.
  void pass_grid_barrier() { ++launch_; }
  // The cells of a word of shared memory (at `offset` bytes), or of the device.
  Cell& shared(size_t offset);
  Cell& device(uintptr_t address) { return device_[(address - region_) / 4]; }
  uint32_t launch() const { return launch_; }

  // Record an access; return the earlier access that it races with, or a Mark of launch 0.
  static Mark note(Cell& cell, const Mark& mark);

 private:
  uint32_t launch_ = 0;
  std::vector<Cell> shared_;
  Cell* device_ = nullptr;  // for all device addresses, sparsely used
  uintptr_t region_ = 0;
};

}  // namespace twin
