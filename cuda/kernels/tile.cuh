// A tile of 64 x 64 computed by four groups of 64 threads, which share the depth of a slab and add
// up at the end. A thread has 8 x 8 elements, so that the arithmetic outweighs the shared loads.
#pragma once

#include "operands.cuh"

constexpr int kDepth = 16;  // of a slab
constexpr int kGroups = 4;
constexpr int kSide = 8;
constexpr int kPitch = kTile + 4;
constexpr int kSlab = kDepth * (kPitch + kTile);  // values of A's and of B's side

// What a thread has of a tile: rows and columns 4 i .. 4 i + 3 and 32 beyond them.
__device__ inline int tile_place(int i, int element) {
  return element / 4 * (kTile / 2) + i * 4 + element % 4;
}

// Adds this group's share of the depth of a slab.
__device__ inline void multiply(const real* a, real (&sum)[kSide][kSide]) {
  const real* b = a + kDepth * kPitch;
  const int group = threadIdx.x / 64, ty = threadIdx.x % 64 / 8, tx = threadIdx.x % 8;
#pragma unroll
  for (int i = 0; i < kDepth / kGroups; ++i) {
    const int k = group * (kDepth / kGroups) + i;
    Lanes<4> x[2], y[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      x[half] = load<4>(a + k * kPitch + tile_place(ty, half * 4), 4, true);
      y[half] = load<4>(b + k * kTile + tile_place(tx, half * 4), 4, true);
    }
#pragma unroll
    for (int m = 0; m < kSide; ++m) {
#pragma unroll
      for (int n = 0; n < kSide; ++n) sum[m][n] += x[m / 4].v[m % 4] * y[n / 4].v[n % 4];
    }
  }
}

// Element (m, j) of columns 2 q and 2 q + 1. Selects, so that the sums stay in registers.
__device__ inline real pick(const real (&sum)[kSide][kSide], int m, int j, int q) {
  real x = sum[m][j];
#pragma unroll
  for (int i = 1; i < kGroups; ++i) x = q == i ? sum[m][2 * i + j] : x;
  return x;
}

// Adds the sums of the groups, in an order that depends on the column alone; group g then has
// columns 2 g and 2 g + 1 of what its threads share. write(row, column, value) takes them.
template <class Write>
__device__ void finish(const real (&sum)[kSide][kSide], real* shared, Write write) {
  constexpr int count = kSide * kSide / kGroups;
  const int group = threadIdx.x / 64, t = threadIdx.x % 64;
  real mine[count];
#pragma unroll
  for (int i = 0; i < count; ++i) mine[i] = pick(sum, i / 2, i % 2, group);
#pragma unroll
  for (int round = 1; round < kGroups; ++round) {
    const int other = (group + round) % kGroups;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < count; ++i) {
      shared[(other * count + i) * 64 + t] = pick(sum, i / 2, i % 2, other);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < count; ++i) mine[i] += shared[(group * count + i) * 64 + t];
  }
#pragma unroll
  for (int i = 0; i < count; ++i) {
    write(tile_place(t / 8, i / 2), tile_place(t % 8, 2 * group + i % 2), mine[i]);
  }
  __syncthreads();  // `shared` may be written again
}
