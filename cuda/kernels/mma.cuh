// Tensor-core products of one warp, in words of 32 bits: one tf32 value, or two consecutive
// bfloat16 values of the depth. In words both precisions have the same fragments. Lane 4 g + t
// holds:
//   A (16 x 8 words): (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4)
//   B (8 words x 8):  (t, g), (t + 4, g)
//   C (16 x 8):       (g, 2 t), (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1)
#pragma once

#include "rows.cuh"

template <int N>
struct alignas(4 * N < 16 ? 4 * N : 16) Words {
  unsigned v[N];
};

#ifdef CAVS_TWIN
// Round to the nearest tf32 value; ties go away from zero.
inline float rounded(float x) {
  if (x != x) return __uint_as_float(0x7fffe000u);
  if (x - x != 0) return x;
  return __uint_as_float((__float_as_uint(x) + 0x1000u) & ~0x1fffu);
}

struct Fragments {
  Words<4> a;
  Words<2> b;
};

// c += A B in float, in ascending order of the depth; value(word, i) is the i-th value of a word.
template <int Values, class F>
inline void multiply_fragments(float (&c)[4], const Words<4>& a, const Words<2>& b, F value) {
  Fragments all[32];
  twin::warp_gather(Fragments{a, b}, all);
  const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
  float sum[4] = {c[0], c[1], c[2], c[3]};
  for (int k = 0; k < 8; ++k) {
    const Words<4>& rows = all[row * 4 + k % 4].a;
    const unsigned upper = rows.v[k / 4 * 2], lower = rows.v[k / 4 * 2 + 1];
    const unsigned first = all[column * 4 + k % 4].b.v[k / 4];
    const unsigned second = all[column * 4 + 4 + k % 4].b.v[k / 4];
    for (int v = 0; v < Values; ++v) {
      const float low = value(lower, v), high = value(upper, v);
      const float left = value(first, v), right = value(second, v);
      sum[0] = fmaf(high, left, sum[0]);
      sum[1] = fmaf(high, right, sum[1]);
      sum[2] = fmaf(low, left, sum[2]);
      sum[3] = fmaf(low, right, sum[3]);
    }
  }
  for (int i = 0; i < 4; ++i) c[i] = sum[i];
}
#endif

struct Tf32 {
  static constexpr int kValues = 1;  // values in a word

  static __device__ unsigned word(float x, float) {
#ifdef CAVS_TWIN
    return __float_as_uint(rounded(x));
#else
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
#endif
  }

  static __device__ void multiply(float (&c)[4], const Words<4>& a, const Words<2>& b) {
#ifdef CAVS_TWIN
    multiply_fragments<1>(c, a, b, [](unsigned word, int) { return __uint_as_float(word); });
#else
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b.v[0]), "r"(b.v[1]));
#endif
  }
};

struct Bf16 {
  static constexpr int kValues = 2;

  static __device__ unsigned word(float first, float second) {
#ifdef CAVS_TWIN
    return narrowed(first).bits | static_cast<unsigned>(narrowed(second).bits) << 16;
#else
    unsigned bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(second), "f"(first));
    return bits;
#endif
  }

  static __device__ void multiply(float (&c)[4], const Words<4>& a, const Words<2>& b) {
#ifdef CAVS_TWIN
    multiply_fragments<2>(c, a, b, [](unsigned word, int i) {
      return __uint_as_float(i == 0 ? word << 16 : word & 0xffff0000u);
    });
#else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b.v[0]), "r"(b.v[1]));
#endif
  }
};
