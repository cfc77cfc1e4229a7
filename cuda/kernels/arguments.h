// The structures that kernels take by value; arguments.cuh declares them for the device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "exec/executor.h"

namespace cavs::cuda {

// bfloat16: how packed weights and values between kernels may be stored instead of as float.
constexpr size_t kHalfBytes = 2;  // size of a bfloat16

// A cavs::Source with data in bfloat16 if `half`; strides count values. Padding is a named member,
// because commands are compared byte by byte.
template <class T>
struct Rows {
  const void* data = nullptr;
  int64_t stride = 0, base = 0;
  const int32_t *index = nullptr, *offsets = nullptr;
  RowMap map = RowMap::kSelf;
  bool half = false;
  uint16_t unused = 0;
  int32_t width = 0;
};
static_assert(sizeof(Rows<float>) == 48 && sizeof(bool) == 1 && sizeof(RowMap) == 1);

constexpr int kMostSources = 8;
template <class T>
struct Sources {
  Rows<T> of[kMostSources];
  int count = 0, unused = 0;
};

template <class T>
struct Sum {
  T* out;
  int width, accumulate;
};
template <class T>
struct Sums {
  Sum<T> of[kMostSources] = {};
};

template <class T>
struct Piece {
  const T* from;
  void* to;
  int64_t row_stride, col_stride, rows, cols, to_stride;
};

template <class T>
struct UpdateChunk {
  T* param;
  const T* grad;
  T* states[kMostStates];
  const int* rows;
  int64_t count, width, stride, offset;
};

struct Outcome {
  double loss, norm, scale;
  int ok;
};

// Numbers of an update by a program, of which the first multiplies the gradient.
struct UpdateNumbers {
  double of[kMostNumbers];
};

struct Optimizer {
  int type, nesterov;
  double lr, momentum, beta1, beta2, eps, weight_decay, grad_scale, bias1, bias2;
};

}  // namespace cavs::cuda
