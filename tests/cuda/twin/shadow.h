// The last accesses to each word of memory in a launch, to find accesses of two threads that no
// barrier orders.
#pragma once

#include <cstdint>
#include <vector>

#include "memory.h"
#include "module.h"

namespace twin {

// An access of a thread. Its epoch is the time between two barriers of one block in one launch, or
// in a phase of a launch; 0: none.
struct Mark {
  uint32_t epoch = 0;
  uint32_t syncs = 0;  // calls of __syncwarp() that the thread has passed
  uint32_t at = 0;     // instruction, relative to the module
  uint16_t thread = 0;
  uint8_t bytes = 0;                           // bytes of the word, one bit each
  bool write : 1 = false, shared : 1 = false;  // shared: in shared memory

  bool same_moment(const Mark& other) const {
    return epoch == other.epoch && thread == other.thread && syncs == other.syncs;
  }
};

// The last write of a word and two of its last reads, of different threads if possible. Every word
// of memory has one, so its size decides how fast checked kernels run.
struct Cell {
  Mark write, reads[2];
};
static_assert(sizeof(Cell) == 48);

class Shadow {
 public:
  // Start a launch. checked: accesses will be recorded.
  void begin(const Memory& memory, bool checked);
  // All threads of all blocks passed a barrier: the rest is like a separate launch.
  void pass_grid_barrier();
  // A block starts or goes on, or all of its threads passed a barrier.
  void begin_epoch(uint32_t block);
  // The cells of a word of shared memory (at `offset` bytes), or of the device.
  Cell& shared(size_t offset);
  Cell& device(uintptr_t address) { return device_[(address - region_) / 4]; }
  uint32_t epoch() const { return epoch_; }
  // The block of an epoch of this launch.
  uint32_t block_of(uint32_t epoch) const { return blocks_[epoch - first_]; }

  // Record an access; return the earlier access that it races with, or a Mark of epoch 0.
  Mark note(Cell& cell, const Mark& mark) const;

 private:
  bool ordered(const Mark& earlier, const Mark& later) const;

  uint32_t epoch_ = 0, first_ = 1;  // the present epoch, and the first one of the launch
  std::vector<uint32_t> blocks_;    // the block of each epoch of the launch
  std::vector<Cell> shared_;
  Cell* device_ = nullptr;  // for all device addresses, sparsely used
  uintptr_t region_ = 0;
};

}  // namespace twin
