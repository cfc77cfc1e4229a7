// The structures that kernels take by value; kernels/arguments.cuh has the same for the device.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace cavs::cuda {

template <class T>
using Rows = Source<T>;

constexpr int kMostSources = 8;
template <class T>
struct Sources {
  Rows<T> of[kMostSources];
  int count = 0;
};

template <class T>
struct Piece {
  const T* from;
  T* to;
  int64_t row_stride, col_stride, rows, cols, to_stride;
};

template <class T>
struct Stretch {
  T* param;
  const T* grad;
  T *state1, *state2;
  const int* rows;
  int64_t count, width, stride, offset;
};

struct Outcome {
  double loss, norm, scale;
  int ok;
};

struct Optimizer {
  int kind, nesterov;
  double lr, momentum, beta1, beta2, eps, weight_decay, grad_scale, bias1, bias2;
};

}  // namespace cavs::cuda
