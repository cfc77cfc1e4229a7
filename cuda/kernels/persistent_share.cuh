// What a block of a persistent kernel has of the columns of a task, and where its results go.
#pragma once

#include "rows.cuh"

// Columns of a result that a block has: `unit` of each of `repeats` periods, from `first` on.
struct Columns {
  int period, unit, repeats, first;

  __device__ int count() const { return repeats * unit; }
  // Column number i of them; -1 behind the last slice.
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

// Where operands begin that hold a task's rows alone: bit s of a mask is of source s.
struct First {
  unsigned vertices, edges;  // masks
  long long vertex, edge;    // the task's first ones

  __device__ Rows of(const Sources& a, int s) const {
    Rows rows = a.of[s];
    if (vertices >> s & 1) rows.base += vertex;
    if (edges >> s & 1) rows.base += edge;
    return rows;
  }
};

// A value of a result: of row r and a column, the i-th that the block has.
struct Spot {
  long long r;
  int column, i;
};

// A result in memory: row r stands (r - base) * stride values behind `data`.
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

// A result that no other block reads: what the block has of it, in shared memory.
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
