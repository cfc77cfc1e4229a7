// A tile of 64 x 64 computed by two groups of 128 threads, which share the depth of a slab and add
// their sums at the end. A thread computes 8 x 4 elements, so that arithmetic outweighs loads from
// shared memory, and a segment can be summed meanwhile without spilling.
#pragma once

#include "operands.cuh"

constexpr int kDepth = 16;  // depth of a slab
constexpr int kGroups = 2;
constexpr int kPitch = kTile + 4;
constexpr int kSlab = kDepth * (kPitch + kTile);  // values of a slab of A and of B

// A thread computes rows 4 ty to 4 ty + 3 and the same + 32, and columns 4 tx to 4 tx + 3. A warp
// covers 4 x 8 threads, whose loads of a slab are free of bank conflicts.
struct Thread {
  int group, ty, tx;

  __device__ Thread()
      : group(threadIdx.x / 128),
        ty(threadIdx.x / 64 % 2 * 4 + threadIdx.x % 32 / 8),
        tx(threadIdx.x / 32 % 2 * 8 + threadIdx.x % 8) {}
  __device__ int row(int m) const { return m / 4 * (kTile / 2) + ty * 4 + m % 4; }
};

// Add this group's share of the depth of a slab.
__device__ inline void multiply(const real* a, real (&sum)[8][4]) {
  const real* b = a + kDepth * kPitch;
  const Thread me;
#pragma unroll
  for (int i = 0; i < kDepth / kGroups; ++i) {
    const int k = me.group * (kDepth / kGroups) + i;
    const Lanes<4> x[2] = {take<4>(a + k * kPitch + me.row(0)),
                           take<4>(a + k * kPitch + me.row(4))};
    const Lanes<4> y = take<4>(b + k * kTile + me.tx * 4);
#pragma unroll
    for (int m = 0; m < 8; ++m) {
#pragma unroll
      for (int n = 0; n < 4; ++n) sum[m][n] += x[m / 4].v[m % 4] * y.v[n];
    }
  }
}

// Add the sums of the groups; each group then has half of the rows of its threads.
__device__ inline void finish(const real (&sum)[8][4], real* shared, const Target& to) {
  const Thread me;
  const bool first = me.group == 0;
  real* others = shared + (1 - me.group) * (16 * 128) + threadIdx.x % 128;
  const real* mine = shared + me.group * (16 * 128) + threadIdx.x % 128;
#pragma unroll
  for (int i = 0; i < 16; ++i) others[i * 128] = first ? sum[4 + i / 4][i % 4] : sum[i / 4][i % 4];
  __syncthreads();
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    Lanes<4> x;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      x.v[n] = (first ? sum[m][n] : sum[4 + m][n]) + mine[(m * 4 + n) * 128];
    }
    to.write(me.row(me.group * 4 + m), me.tx * 4, x);
  }
  __syncthreads();  // `shared` is reused
}
