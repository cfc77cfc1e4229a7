// What each word of memory was last used for in a launch, to find accesses of two threads that no
// barrier orders.
#pragma once

#include <cstdint>
#include <vector>

#include "memory.h"
#include "module.h"

namespace twin {

// An access of a thread: when, by the barriers of its block and of its warp that it came through.
struct Mark {
  uint32_t launch = 0;  // or phase of one; 0: none
  uint32_t block = 0, barriers = 0, syncs = 0;
  uint16_t thread = 0;
  uint8_t bytes = 0;                   // of the word, a bit each
  bool write = false, shared = false;  // shared: memory of the block
  uint32_t at = 0;                     // the instruction, from the start of the module

  bool ordered_before(const Mark& later) const;
  bool same_moment(const Mark& other) const {
    return block == other.block && thread == other.thread && barriers == other.barriers &&
           syncs == other.syncs;
  }
};

// A word's last write and two of its last reads, of different threads where there are two.
struct Cell {
  Mark write, reads[2];
};

class Shadow {
 public:
  // A new launch. checked: it will note what it does.
  void begin(const Memory& memory, bool checked);
  // All threads of all blocks came through a barrier: what follows is as a launch of its own.
  void pass_grid_barrier() { ++launch_; }
  // The cells of a word of shared memory (`offset` bytes from its start), or of the device.
  Cell& shared(size_t offset);
  Cell& device(uintptr_t address) { return device_[(address - region_) / 4]; }
  uint32_t launch() const { return launch_; }

  // Notes an access; gives the earlier one that it races with, or a Mark of launch 0.
  static Mark note(Cell& cell, const Mark& mark);

 private:
  uint32_t launch_ = 0;
  std::vector<Cell> shared_;
  Cell* device_ = nullptr;  // for the whole region of device addresses, of which little is touched
  uintptr_t region_ = 0;
};

}  // namespace twin
