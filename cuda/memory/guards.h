// For tests: values that stand apart from each other, so that what is written between them shows.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/driver/device.h"

namespace cavs::cuda {

class Guards {
 public:
  explicit Guards(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  void clear();
  // Where `bytes` of a buffer may stand: nothing else stands there, at no time.
  size_t place(int32_t buffer, size_t bytes);
  size_t bytes() const { return end_ + kLine; }
  // Before a run: all of `memory` is NaN then, or -1.
  void fill(const DeviceMemory& memory) const;
  // After it, which this waits for: a buffer beside which something was written; none: -1.
  int32_t broken(const DeviceMemory& memory) const;

 private:
  struct Place {
    int32_t buffer;
    size_t begin, end;
  };
  std::shared_ptr<Device> device_;
  std::vector<Place> places_;
  size_t end_ = 0;
};

}  // namespace cavs::cuda
