"""Device functions that generated CUDA kernels call."""

# The numbers of `uniform` are those of csrc/kernels/isa_uniform.h.
PRELUDE = """\
// A neighbouring elements, aligned to their size: they move as one word.
template <class T, int A>
struct alignas(A * sizeof(T)) Word {
  T at[A];
};
// V elements, A at a time.
template <int A, int V, class T>
__device__ inline void fetch(T (&to)[V], const T* from) {
#pragma unroll
  for (int k = 0; k < V; k += A) {
    const Word<T, A> word = *reinterpret_cast<const Word<T, A>*>(from + k);
#pragma unroll
    for (int a = 0; a < A; ++a) to[k + a] = word.at[a];
  }
}
template <int A, int V, class T, class From>
__device__ inline void accumulate(T (&to)[V], const From* from) {
  T more[V];
  fetch<A>(more, from);
#pragma unroll
  for (int v = 0; v < V; ++v) to[v] += more[v];
}
template <int A, int V, class T>
__device__ inline void put(T* to, const T (&from)[V]) {
#pragma unroll
  for (int k = 0; k < V; k += A) {
    Word<T, A> word;
#pragma unroll
    for (int a = 0; a < A; ++a) word.at[a] = from[k + a];
    *reinterpret_cast<Word<T, A>*>(to + k) = word;
  }
}
// 1 / x for x >= 1 to a unit or two in the last place; there is no call for special cases, as there
// is in a division.
__device__ inline float reciprocal(float x) {
#ifdef CAVS_TWIN
  return 1.0f / x;
#else
  float y;
  asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}
__device__ inline double reciprocal(double x) {
#ifdef CAVS_TWIN
  return 1.0 / x;
#else
  double y;  // good to 20 bits
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
#pragma unroll
  for (int i = 0; i < 2; ++i) y = fma(y, fma(-x, y, 1.0), y);
  return x > 1e300 ? 0.0 : y;
#endif
}
__device__ inline float hyperbolic_tangent(float x) { return tanhf(x); }
__device__ inline double hyperbolic_tangent(double x) {
  const double twice = 2 * fabs(x), e = expm1(twice > 40.0 ? 40.0 : twice);
  return copysign(e * reciprocal(e + 2), x);
}
// 64 zero bits, then the bits of 2 / pi.
static __constant__ const unsigned long long kTwoOverPi[20] = {
    0x0ull, 0xa2f9836e4e441529ull, 0xfc2757d1f534ddc0ull,
    0xdb6295993c439041ull, 0xfe5163abdebbc561ull, 0xb7246e3a424dd2e0ull,
    0x6492eea09d1921cull, 0xfe1deb1cb129a73eull, 0xe88235f52ebb4484ull,
    0xe99c7026b45f7e41ull, 0x3991d639835339f4ull, 0x9c845f8bbdf9283bull,
    0x1ff897ffde05980full, 0xef2f118b5a0a6d1full, 0x6d367ecf27cb09b7ull,
    0x4f463f669e5fea2dull, 0x7527bac7ebe5f17bull, 0x3d0739f78a5292eaull,
    0x6bfb5fb11f8d5d08ull, 0x56033046fc7b6babull};
// x modulo pi / 2, nearest to zero, and the quadrant, for finite |x| >= 2^20 (Payne, Hanek 1983).
// Bits of 2 / pi whose products with x are multiples of 4 are left out. There is no array, as it
// would need a stack.
__device__ inline double remainder_of_large(double x, int& quadrant) {
  const unsigned long long bits = (unsigned long long)__double_as_longlong(x);
  const int first = (int)(bits >> 52 & 2047) - 1013, shift = first & 63;
  const unsigned long long* const at = kTwoOverPi + (first >> 6);
  const unsigned long long m = (bits & 0xfffffffffffffull) | 0x10000000000000ull;
  const unsigned long long high = at[0] << shift | at[1] >> 1 >> (63 - shift);
  const unsigned long long middle = at[1] << shift | at[2] >> 1 >> (63 - shift);
  const unsigned long long low = at[2] << shift | at[3] >> 1 >> (63 - shift);
  const unsigned long long carry = __umul64hi(m, low), second = m * middle + carry;
  const unsigned long long top = m * high + __umul64hi(m, middle) + (second < carry);
  const unsigned long long fraction = top << 2 | second >> 62;
  const unsigned long long rest = second << 2 | m * low >> 62;
  const double r = (double)(long long)fraction * 0x1p-64 + (double)rest * 0x1p-128;
  const int q = (int)(top >> 62) + (int)(fraction >> 63);
  quadrant = x < 0 ? -q : q;
  return (x < 0 ? -r : r) * 1.5707963267948966;
}
// As in csrc/kernels/isa_math.h.
__device__ inline double sinusoid(double x, int ahead) {
  const double magnitude = fabs(x);
  if (x - x != 0.0) return x - x;  // infinite or NaN
  double r, y;
  int quadrant;
  if (magnitude <= 1048576.0) {
    const double n = rint(x * 0.6366197723675814);
    r = fma(-n, 1.5707963267341256, x);
    r = fma(-n, 2.0222662487959506e-21, fma(-n, 6.077100506303966e-11, r));
    quadrant = (int)n;
  } else {
    r = remainder_of_large(x, quadrant);
  }
  quadrant += ahead;
  const double z = r * r;
  if (quadrant & 1) {
    y = -1.13596475577881948265e-11;
    y = fma(y, z, 2.08757232129817482790e-9);
    y = fma(y, z, -2.75573143513906633035e-7);
    y = fma(y, z, 2.48015872894767294178e-5);
    y = fma(y, z, -1.38888888888741095749e-3);
    y = fma(y, z, 4.16666666666666019037e-2);
    y = fma(y * z, z, fma(-0.5, z, 1.0));
  } else {
    y = 1.58969099521155010221e-10;
    y = fma(y, z, -2.50507602534068634195e-8);
    y = fma(y, z, 2.75573137070700676789e-6);
    y = fma(y, z, -1.98412698298579493134e-4);
    y = fma(y, z, 8.33333333332248946124e-3);
    y = fma(y, z, -1.66666666666666324348e-1);
    y = fma(y * z, r, r);
  }
  return quadrant & 2 ? -y : y;
}
// In double, as the library's functions of floats need a stack for large operands.
__device__ inline float sine(float x) { return (float)sinusoid(x, 0); }
__device__ inline double sine(double x) { return sinusoid(x, 0); }
__device__ inline float cosine(float x) { return (float)sinusoid(x, 1); }
__device__ inline double cosine(double x) { return sinusoid(x, 1); }
__device__ inline unsigned mix(unsigned x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}
__device__ inline unsigned row_key(unsigned long long seed, unsigned long long step,
                                   unsigned stream, unsigned row) {
  const unsigned words[] = {(unsigned)seed, (unsigned)(seed >> 32), (unsigned)step,
                            (unsigned)(step >> 32), stream, row};
  unsigned key = 0;
#pragma unroll
  for (int i = 0; i < 6; ++i) key = mix((key ^ words[i]) + 0x9e3779b9u);
  return key;
}
__device__ inline float uniform(unsigned key, unsigned column) {
  return (mix(mix(key ^ column) + mix(key + 0x85ebca6bu)) >> 8) * 5.9604644775390625e-8f;
}
"""

# Device functions of kernels that store values in bfloat16.
HALF_PRELUDE = """\
#include "bfloat16.cuh"
template <int A, int V>
__device__ inline void fetch(float (&to)[V], const bfloat16* from) {
  bfloat16 halves[V];
  fetch<A>(halves, from);
#pragma unroll
  for (int v = 0; v < V; ++v) to[v] = widened(halves[v]);
}
template <int A, int V>
__device__ inline void put(bfloat16* to, const float (&from)[V]) {
  bfloat16 halves[V];
#pragma unroll
  for (int v = 0; v < V; ++v) halves[v] = narrowed(from[v]);
  put<A>(to, halves);
}
"""
