// Gradients that are handed out as the operands of their products (see exec/factors.h).
#pragma once

#include <memory>

#include "cuda/driver/device.h"
#include "exec/factors.h"

namespace cavs::cuda {

// Where the operands of a gradient lie on the device and, after a run that others follow, here.
struct DeviceFactors {
  explicit DeviceFactors(const std::shared_ptr<Device>& device)
      : left(device), right(device), left_here(device), right_here(device) {}
  Factors of;
  DeviceMemory left, right;
  PinnedMemory left_here, right_here;

  template <class T>
  void bind(const BoundProgram<T>& bound, const Spaces& spaces) {
    count_factor_rows(of, bound, spaces);
    const size_t rows = of.rows * sizeof(T);
    left.reserve(rows * of.k);
    left_here.reserve(rows * of.k);
    right.reserve(rows * of.n);
    right_here.reserve(rows * of.n);
  }
};

}  // namespace cavs::cuda
