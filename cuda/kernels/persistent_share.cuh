// What a block of a persistent kernel has of rows and columns, and where its results go.
#pragma once

#include "rows.cuh"

constexpr int kTileRows = 16;  // of a tile

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

// The tiles of rows [begin, end) that a group of blocks has.
struct Tiles {
  long long begin, end;
  int group, groups;

  __device__ int count() const {
    const int all = static_cast<int>((end - begin + kTileRows - 1) / kTileRows);
    return all > group ? (all - group + groups - 1) / groups : 0;
  }
  __device__ long long row(int tile) const {
    return begin + (static_cast<long long>(tile) * groups + group) * kTileRows;
  }
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

// A value of a result: of row r and a column, the n-th row and the i-th column that the block has.
struct Spot {
  long long r;
  int column, n, i;
};

// A result in memory: row r stands (r - base) * stride values behind `data`.
struct Result {
  void* data;
  long long stride, base;
  bool half, accumulate;

  __device__ void write(const Spot& spot, real x) const {
    const long long r = spot.r;
    const int column = spot.column;
    const long long at = (r - base) * stride + column;
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
  bool accumulate;

  __device__ void write(const Spot& spot, real x) const {
    real* to = data + spot.n * stride + spot.i;
    *to = accumulate ? *to + x : x;
  }
};
