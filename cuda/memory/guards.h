// Guard bytes around values, for tests: writes outside of a value are detected.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/driver/device.h"
#include "cuda/memory/allocation.h"

namespace cavs::cuda {

class Guards {
 public:
  explicit Guards(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  void clear();
  // Return the offset of `bytes` for a buffer, which share memory with no other buffer.
  size_t add(int32_t buffer, size_t bytes);
  size_t bytes() const { return end_ + kAlignment; }
  // Before a run: fill `memory` with 0xff bytes (NaN, or -1).
  void fill(const DeviceMemory& memory) const;
  // After a run, which this waits for: a buffer next to which guard bytes changed, or -1.
  int32_t broken(const DeviceMemory& memory) const;

 private:
  struct Range {
    int32_t buffer;
    size_t begin, end;
  };
  std::shared_ptr<Device> device_;
  std::vector<Range> ranges_;
  size_t end_ = 0;
};

}  // namespace cavs::cuda
