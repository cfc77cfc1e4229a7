// Vectors of one instruction set, through GCC's vector extensions: aligned registers, unaligned
// loads, and partial loads and stores that touch no element past `n`. Everything here has internal
// linkage, so that no function compiled for one instruction set can be linked into another.
#pragma once

#include "kernels/kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define CAVS_INLINE inline __attribute__((always_inline))

namespace cavs::CAVS_ISA {
namespace {

template <class T>
struct VectorTypes;
template <>
struct VectorTypes<float> {
  using Int = int32_t;
  typedef float Vector __attribute__((vector_size(CAVS_VECTOR_BYTES)));
  typedef int32_t IntVector __attribute__((vector_size(CAVS_VECTOR_BYTES)));
  typedef uint32_t UnsignedVector __attribute__((vector_size(CAVS_VECTOR_BYTES)));
  typedef uint32_t HashVector __attribute__((vector_size(CAVS_VECTOR_BYTES)));
  typedef int32_t SmallVector __attribute__((vector_size(CAVS_VECTOR_BYTES)));
  typedef float Loose __attribute__((vector_size(CAVS_VECTOR_BYTES), aligned(4), may_alias));
};
template <>
struct VectorTypes<double> {
  using Int = int64_t;
  typedef double Vector __attribute__((vector_size(CAVS_VECTOR_BYTES)));
  typedef int64_t IntVector __attribute__((vector_size(CAVS_VECTOR_BYTES)));
  typedef uint64_t UnsignedVector __attribute__((vector_size(CAVS_VECTOR_BYTES)));
  // As many 32-bit numbers as there are doubles.
  typedef uint32_t HashVector __attribute__((vector_size(CAVS_VECTOR_BYTES / 2)));
  typedef int32_t SmallVector __attribute__((vector_size(CAVS_VECTOR_BYTES / 2)));
  typedef double Loose __attribute__((vector_size(CAVS_VECTOR_BYTES), aligned(8), may_alias));
};
template <class T>
using Vector = typename VectorTypes<T>::Vector;
template <class T>
using IntVector = typename VectorTypes<T>::IntVector;
template <class T>
using HashVector = typename VectorTypes<T>::HashVector;
template <class T>
constexpr int kLanes = CAVS_VECTOR_BYTES / static_cast<int>(sizeof(T));

template <class T>
CAVS_INLINE Vector<T> load(const T* p) {
  return *reinterpret_cast<const typename VectorTypes<T>::Loose*>(p);
}
template <class T>
CAVS_INLINE void store(T* p, Vector<T> v) {
  *reinterpret_cast<typename VectorTypes<T>::Loose*>(p) = v;
}
template <class T>
CAVS_INLINE Vector<T> broadcast(T x) {
  return x - Vector<T>{};
}
// The intrinsics below are the masked forms under a full mask: gcc 12 warns about its own header's
// unmasked ones, and the mask folds away.

// 0, 1, 2, ... in the lanes.
template <class T, class V = IntVector<T>>
CAVS_INLINE V iota() {
  V v{};
  for (int i = 0; i < kLanes<T>; ++i) v[i] = i;
  return v;
}

// Lanes [0, n) of memory, zeros above; 0 <= n < lanes.
template <class T>
CAVS_INLINE Vector<T> load_partial(const T* p, int n) {
#if CAVS_VECTOR_BYTES == 64
  if constexpr (sizeof(T) == 4) {
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1u), p);
  } else {
    return _mm512_maskz_loadu_pd(static_cast<__mmask8>((1u << n) - 1u), p);
  }
#elif CAVS_VECTOR_BYTES == 32
  if constexpr (sizeof(T) == 4) {
    return _mm256_maskload_ps(p, (__m256i)(iota<T>() < n));
  } else {
    return _mm256_maskload_pd(p, (__m256i)(iota<T>() < static_cast<int64_t>(n)));
  }
#else
  Vector<T> v{};
  for (int i = 0; i < kLanes<T> - 1; ++i)
    if (i < n) v[i] = p[i];
  return v;
#endif
}

template <class T>
CAVS_INLINE void store_partial(T* p, Vector<T> v, int n) {
#if CAVS_VECTOR_BYTES == 64
  if constexpr (sizeof(T) == 4) {
    _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1u), v);
  } else {
    _mm512_mask_storeu_pd(p, static_cast<__mmask8>((1u << n) - 1u), v);
  }
#elif CAVS_VECTOR_BYTES == 32
  if constexpr (sizeof(T) == 4) {
    _mm256_maskstore_ps(p, (__m256i)(iota<T>() < n), v);
  } else {
    _mm256_maskstore_pd(p, (__m256i)(iota<T>() < static_cast<int64_t>(n)), v);
  }
#else
  for (int i = 0; i < kLanes<T> - 1; ++i)
    if (i < n) p[i] = v[i];
#endif
}

template <class T>
CAVS_INLINE Vector<T> square_root(Vector<T> x) {
#if CAVS_VECTOR_BYTES == 64
  if constexpr (sizeof(T) == 4)
    return _mm512_maskz_sqrt_ps(0xffff, x);
  else
    return _mm512_maskz_sqrt_pd(0xff, x);
#elif CAVS_VECTOR_BYTES == 32
  if constexpr (sizeof(T) == 4)
    return _mm256_sqrt_ps(x);
  else
    return _mm256_sqrt_pd(x);
#else
  for (int i = 0; i < kLanes<T>; ++i)
    x[i] = sizeof(T) == 4 ? static_cast<T>(__builtin_sqrtf(static_cast<float>(x[i])))
                          : static_cast<T>(__builtin_sqrt(x[i]));
  return x;
#endif
}

// a < b ? a : b and a > b ? a : b, one instruction: NaN in either operand gives b.
template <class T>
CAVS_INLINE Vector<T> lesser_or_second(Vector<T> a, Vector<T> b) {
#if CAVS_VECTOR_BYTES == 64
  if constexpr (sizeof(T) == 4)
    return _mm512_maskz_min_ps(0xffff, a, b);
  else
    return _mm512_maskz_min_pd(0xff, a, b);
#else
  return a < b ? a : b;
#endif
}
template <class T>
CAVS_INLINE Vector<T> greater_or_second(Vector<T> a, Vector<T> b) {
#if CAVS_VECTOR_BYTES == 64
  if constexpr (sizeof(T) == 4)
    return _mm512_maskz_max_ps(0xffff, a, b);
  else
    return _mm512_maskz_max_pd(0xff, a, b);
#else
  return a > b ? a : b;
#endif
}
// x in [low, high]; NaN stays NaN.
template <class T>
CAVS_INLINE Vector<T> clamp(Vector<T> x, T low, T high) {
  return greater_or_second<T>(broadcast(low), lesser_or_second<T>(broadcast(high), x));
}
// maximum and minimum propagate a NaN of either operand.
template <class T>
CAVS_INLINE Vector<T> maximum(Vector<T> a, Vector<T> b) {
  return a != a ? a : greater_or_second<T>(a, b);
}
template <class T>
CAVS_INLINE Vector<T> minimum(Vector<T> a, Vector<T> b) {
  return a != a ? a : lesser_or_second<T>(a, b);
}

// Sum or maximum of all lanes, in each lane. They are added pairwise, always in the same order.
template <class T, class Join>
CAVS_INLINE Vector<T> join_lanes(Vector<T> v, Join join) {
  for (int half = kLanes<T> / 2; half > 0; half /= 2)
    v = join(v, __builtin_shuffle(v, iota<T>() ^ half));
  return v;
}
template <class T>
CAVS_INLINE Vector<T> sum_of_lanes(Vector<T> v) {
  return join_lanes<T>(v, [](Vector<T> a, Vector<T> b) { return a + b; });
}
template <class T>
CAVS_INLINE Vector<T> max_of_lanes(Vector<T> v) {
  return join_lanes<T>(v, [](Vector<T> a, Vector<T> b) { return maximum<T>(a, b); });
}
template <class T>
CAVS_INLINE T lane_sum(Vector<T> v) {
  return sum_of_lanes<T>(v)[0];
}
template <class T>
CAVS_INLINE T greater(T a, T b) {
  return (a > b || a != a) ? a : b;
}
template <class T>
CAVS_INLINE T lane_max(Vector<T> v) {
  return max_of_lanes<T>(v)[0];
}

// for_each_vector(n, full, partial): full(i) for every whole vector, partial(i, count) for the
// rest.
template <class T, class Full, class Partial>
CAVS_INLINE void for_each_vector(int64_t n, Full full, Partial partial) {
  int64_t i = 0;
  for (; i + kLanes<T> <= n; i += kLanes<T>) full(i);
  if (i < n) partial(i, static_cast<int>(n - i));
}

template <class T>
CAVS_INLINE void fill(T* out, T value, int64_t n) {
  const Vector<T> v = broadcast(value);
  for_each_vector<T>(
      n, [&](int64_t i) { store(out + i, v); },
      [&](int64_t i, int c) { store_partial(out + i, v, c); });
}
template <class T>
CAVS_INLINE void copy(T* out, const T* in, int64_t n) {
  for_each_vector<T>(
      n, [&](int64_t i) { store(out + i, load(in + i)); },
      [&](int64_t i, int c) { store_partial(out + i, load_partial(in + i, c), c); });
}
// out = a + b
template <class T>
CAVS_INLINE void add(T* out, const T* a, const T* b, int64_t n) {
  for_each_vector<T>(
      n, [&](int64_t i) { store(out + i, load(a + i) + load(b + i)); },
      [&](int64_t i, int c) {
        store_partial(out + i, load_partial(a + i, c) + load_partial(b + i, c), c);
      });
}

template <class T>
T sum_of(const T* x, int64_t n) {
  Vector<T> sum{};
  for_each_vector<T>(
      n, [&](int64_t i) { sum += load(x + i); },
      [&](int64_t i, int c) { sum += load_partial(x + i, c); });
  return lane_sum<T>(sum);
}

template <class T>
T max_of(const T* x, int64_t n) {
  const T lowest = -static_cast<T>(__builtin_inf());
  Vector<T> best = broadcast(lowest);
  for_each_vector<T>(
      n, [&](int64_t i) { best = maximum<T>(load(x + i), best); },
      [&](int64_t i, int c) {
        best = maximum<T>(iota<T>() < c ? load_partial(x + i, c) : broadcast(lowest), best);
      });
  return lane_max<T>(best);
}

}  // namespace
}  // namespace cavs::CAVS_ISA
