// Products of a tile of rows and eight columns over one chunk of the depth, by a warp, in every
// precision.
#pragma once

#include "rows.cuh"
#ifndef CAVS_DOUBLE
#include "mma.cuh"
#endif

constexpr int kChunk = 16;  // depth of a chunk in values

// Lane 4 g + t holds values 4 t to 4 t + 3 of the chunk for rows g and g + 8 of A and column g of
// B; C as in mma.cuh. A and B permute the depth alike, so the permutation does not matter.
#ifndef CAVS_DOUBLE
template <class P>
__device__ inline Words<4> words_of_a(const Lanes<4>& upper, const Lanes<4>& lower, int half) {
  if constexpr (P::kValues == 2) {
    return {{P::word(upper.v[0], upper.v[1]), P::word(lower.v[0], lower.v[1]),
             P::word(upper.v[2], upper.v[3]), P::word(lower.v[2], lower.v[3])}};
  } else {
    const int i = half * 2;
    return {{P::word(upper.v[i], 0), P::word(lower.v[i], 0), P::word(upper.v[i + 1], 0),
             P::word(lower.v[i + 1], 0)}};
  }
}
template <class P>
__device__ inline Words<2> words_of_b(const Lanes<4>& x, int half) {
  if constexpr (P::kValues == 2) {
    return {{P::word(x.v[0], x.v[1]), P::word(x.v[2], x.v[3])}};
  } else {
    return {{P::word(x.v[half * 2], 0), P::word(x.v[half * 2 + 1], 0)}};
  }
}

struct InTf32 {
  static __device__ void multiply(float (&sum)[4], const Lanes<4>& upper, const Lanes<4>& lower,
                                  const Lanes<4>& weights) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Tf32::multiply(sum, words_of_a<Tf32>(upper, lower, half), words_of_b<Tf32>(weights, half));
    }
  }
};

struct InBfloat16 {
  static __device__ void multiply(float (&sum)[4], const Lanes<4>& upper, const Lanes<4>& lower,
                                  const Lanes<4>& weights) {
    Bf16::multiply(sum, words_of_a<Bf16>(upper, lower, 0), words_of_b<Bf16>(weights, 0));
  }
};

// Float32 as the sum of two tf32 numbers, the upper bits and the rest. If a value is
// infinite or NaN, only the last of the three products counts; the omitted product is 2^-22 of the
// whole. Tensor cores truncate sums, so the sum of a chunk is added with rounding.
struct InFloat32 {
  struct Split {
    Lanes<4> upper, finite, rest;

    __device__ explicit Split(const Lanes<4>& x) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool number = x.v[i] - x.v[i] == 0;
        const float cut = __uint_as_float(__float_as_uint(x.v[i]) & ~0x1fffu);
        upper.v[i] = number ? cut : x.v[i];
        finite.v[i] = number ? cut : 0.0f;
        rest.v[i] = number ? x.v[i] - cut : 0.0f;
      }
    }
  };
  static __device__ void multiply(float (&sum)[4], const Lanes<4>& upper, const Lanes<4>& lower,
                                  const Lanes<4>& weights) {
    const Split a(upper), b(lower), w(weights);
    float part[4] = {};
    InTf32::multiply(part, a.rest, b.rest, w.finite);
    InTf32::multiply(part, a.finite, b.finite, w.rest);
    InTf32::multiply(part, a.upper, b.upper, w.upper);
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] += part[i];
  }
};
#endif

// Float64, for checks, value by value.
struct InTurn {
  static __device__ void multiply(real (&sum)[4], const Lanes<4>& upper, const Lanes<4>& lower,
                                  const Lanes<4>& weights) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll 1
    for (int lane = 0; lane < 4; ++lane) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const real high = __shfl_sync(kAllLanes, upper.v[i], g * 4 + lane);
        const real low = __shfl_sync(kAllLanes, lower.v[i], g * 4 + lane);
        const real left = __shfl_sync(kAllLanes, weights.v[i], t * 8 + lane);
        const real right = __shfl_sync(kAllLanes, weights.v[i], t * 8 + 4 + lane);
        sum[0] += high * left, sum[1] += high * right;
        sum[2] += low * left, sum[3] += low * right;
      }
    }
  }
};
