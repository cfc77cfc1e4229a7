// A block's slice of the columns of a task, and the destinations of its results.
#pragma once

#include "rows.cuh"

// Columns of a result that a block computes: `unit` of each of `repeats` periods, from `first` on.
struct Columns {
  int period, unit, repeats, first;

  __device__ int count() const { return repeats * unit; }
  // The i-th of them; -1 past the last slice.
  __device__ int at(int i) const {
    const int in_period = first + i % unit;
    return i < count() && in_period < period ? i / unit * period + in_period : -1;
  }
};

// Rows of a task.
struct Span {
  long long begin, end;

  __device__ int size() const { return static_cast<int>(end - begin); }
};

// Starts of scratch operands, which hold a task's rows only: bit s of a mask stands for source s.
struct First {
  unsigned vertices, edges;  // masks
  long long vertex, edge;    // first of the task

  __device__ Rows of(const Sources& a, int s) const {
    Rows rows = a.of[s];
    if (vertices >> s & 1) rows.base += vertex;
    if (edges >> s & 1) rows.base += edge;
    return rows;
  }
};

// Row and column of a value, and its number among the block's columns.
struct Spot {
  long long r;
  int column, i;
};

// A result in memory: row r starts (r - base) * stride values after `data`.
struct Result {
  void* data;
  long long stride, base;
  bool half, accumulate;

  __device__ void write(const Spot& spot, real x) const {
    const long long at = (spot.r - base) * stride + spot.column;
    if (kHalf && half) {
      bfloat16* to = static_cast<bfloat16*>(data) + at;
      assign(*to, accumulate ? static_cast<real>(widened(*to)) + x : x);
    } else {
      real* to = static_cast<real*>(data) + at;
      *to = accumulate ? *to + x : x;
    }
  }
};

// A result that no other block reads: the block's slice of it in shared memory.
struct NearResult {
  real* data;
  int stride;
  long long base;
  bool accumulate;

  __device__ void write(const Spot& spot, real x) const {
    real* to = data + (spot.r - base) * stride + spot.i;
    *to = accumulate ? *to + x : x;
  }
};
