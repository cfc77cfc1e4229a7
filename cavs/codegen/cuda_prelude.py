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
