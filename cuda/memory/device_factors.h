// Sufficient factors: gradients handed out as the operands of their products (see exec/factors.h).
#pragma once

#include <memory>

#include "cuda/driver/device.h"
#include "cuda/memory/allocation.h"
#include "exec/factors.h"

namespace cavs::cuda {

// The operands of a gradient on the device and, after an announced run, on the host.
struct DeviceFactors {
  explicit DeviceFactors(const std::shared_ptr<Device>& device)
      : left(device), right(device), host_left(device), host_right(device) {}
  Factors of;
  DeviceMemory left, right;
  PinnedMemory host_left, host_right;

  template <class T>
  void bind(const BoundProgram<T>& bound, const Spaces& spaces) {
    count_factor_rows(of, bound, spaces);
    const size_t rows = of.rows * sizeof(T);
    left.reserve(rows * of.k);
    host_left.reserve(rows * of.k);
    right.reserve(rows * of.n);
    host_right.reserve(rows * of.n);
  }
};

}  // namespace cavs::cuda
