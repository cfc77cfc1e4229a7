// Reading rows: lookup by row map, and loads of several columns at once.
#pragma once

#include "arguments.cuh"
#include "bfloat16.cuh"

// With CAVS_HALF packed weights are bfloat16, and rows if Rows.half.
#ifdef CAVS_HALF
constexpr bool kHalf = true;
typedef bfloat16 Packed;
#else
constexpr bool kHalf = false;
typedef real Packed;
#endif

constexpr int kThreads = 256;               // threads of every block
constexpr int kWide = 16 / sizeof(real);    // values per 16-byte access
constexpr unsigned kAllLanes = 0xffffffff;  // all lanes of a warp

// N values, moved up to 16 bytes at a time.
template <int N, class V = real>
struct alignas(N * sizeof(V) < 16 ? N * sizeof(V) : 16) Lanes {
  V v[N];
};

__device__ inline long long smaller(long long a, long long b) { return a < b ? a : b; }
__device__ inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

__device__ inline float exponential(float x) { return expf(x); }
__device__ inline double exponential(double x) { return exp(x); }
__device__ inline float logarithm(float x) { return logf(x); }
__device__ inline double logarithm(double x) { return log(x); }
__device__ inline float square_root(float x) { return sqrtf(x); }
__device__ inline double square_root(double x) { return sqrt(x); }

__device__ inline bool aligned(const void* p) {
  return reinterpret_cast<unsigned long long>(p) % 16 == 0;
}
// True if kWide columns can be moved at once in rows of this stride.
__device__ inline bool aligned(const void* data, long long stride, bool half) {
  const int bytes = kHalf && half ? kWide * sizeof(bfloat16) : 16;
  return reinterpret_cast<unsigned long long>(data) % bytes == 0 && stride % kWide == 0;
}
__device__ inline bool aligned(const Rows& s) {
  return aligned(s.data, s.map == 1 ? 0 : s.stride, s.half);
}

__device__ inline real widened(real x) { return x; }
__device__ inline void assign(real& to, real x) { to = x; }
__device__ inline void assign(bfloat16& to, real x) { to = narrowed(static_cast<float>(x)); }

// A row, located by any map but a segment.
struct Row {
  const void* data;  // null for zeros
  bool half;

  __device__ bool none() const { return data == nullptr; }
  template <class V>
  __device__ const V* from(long long column) const {
    return none() ? nullptr : static_cast<const V*>(data) + column;
  }
  __device__ real operator[](long long column) const {
    return kHalf && half ? widened(*from<bfloat16>(column)) : *from<real>(column);
  }
};

__device__ inline Row row_at(const Rows& s, long long i) {
  const long long at = (i - s.base) * s.stride;
  if (kHalf && s.half) return {static_cast<const bfloat16*>(s.data) + at, true};
  return {static_cast<const real*>(s.data) + at, false};
}

// Row r of a map without segments.
__device__ inline Row plain_row(const Rows& s, long long r) {
  if (s.map == 0) return row_at(s, r);
  if (s.map == 1) return {s.data, s.half != 0};
  const int i = s.index[r];
  return i < 0 ? Row{} : row_at(s, i);
}

// Row number j of a segment; adds nothing if it is absent.
__device__ inline Row segment_row(const Rows& s, int j) {
  const int i = s.index != nullptr ? s.index[j] : j;
  return i < 0 ? Row{} : row_at(s, i);
}

// N values at p, which is aligned and not null.
template <int N, class V>
__device__ inline Lanes<N> take(const V* p) {
  const Lanes<N, V> y = *reinterpret_cast<const Lanes<N, V>*>(p);
  Lanes<N> x;
#pragma unroll
  for (int i = 0; i < N; ++i) x.v[i] = widened(y.v[i]);
  return x;
}
// The first n of N values at p, followed by zeros; all zeros if p is null.
template <int N, class V>
__device__ inline Lanes<N> load(const V* p, int n, bool wide) {
  if (wide && p != nullptr && n >= N) return take<N>(p);
  Lanes<N> x;
#pragma unroll
  for (int i = 0; i < N; ++i) x.v[i] = p != nullptr && i < n ? widened(p[i]) : real(0);
  return x;
}
// The same from `column` on.
template <int N>
__device__ inline Lanes<N> load(const Row& row, int column, int n, bool wide) {
  if (kHalf && row.half) return load<N>(row.from<bfloat16>(column), n, wide);
  return load<N>(row.from<real>(column), n, wide);
}

template <class V, int N>
__device__ inline Lanes<N, V> stored(const Lanes<N>& x) {
  Lanes<N, V> y;
#pragma unroll
  for (int i = 0; i < N; ++i) assign(y.v[i], x.v[i]);
  return y;
}
template <int N, class V>
__device__ inline void store(V* p, const Lanes<N>& x) {
  *reinterpret_cast<Lanes<N, V>*>(p) = stored<V>(x);
}
// Store to global memory in one access: in kernels over rows the compiler would split a plain store
// into words.
template <int N, class V>
__device__ inline void store_whole(V* p, const Lanes<N>& x) {
#ifdef CAVS_TWIN
  store(p, x);
#else
  const Lanes<N, V> y = stored<V>(x);
  if constexpr (sizeof(y) == 16) {
    unsigned word[4];
    memcpy(word, &y, 16);
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p)),
                 "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3])
                 : "memory");
  } else if constexpr (sizeof(y) == 8) {
    unsigned word[2];
    memcpy(word, &y, 8);
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(p)),
                 "r"(word[0]), "r"(word[1])
                 : "memory");
  } else {
    store(p, x);
  }
#endif
}
// Values [i, i + N) stored at p.
template <int N>
__device__ inline void store(void* p, long long i, bool half, const Lanes<N>& x) {
  if (kHalf && half) {
    store_whole(static_cast<bfloat16*>(p) + i, x);
  } else {
    store_whole(static_cast<real*>(p) + i, x);
  }
}

template <int N>
__device__ inline void add(Lanes<N>& sum, const Lanes<N>& x) {
#pragma unroll
  for (int i = 0; i < N; ++i) sum.v[i] += x.v[i];
}

// Add rows [j, end) of a segment, at most Count, with all loads in flight. Missing rows add zeros,
// which change no sum that starts at zero, since none is -0.
template <int N, int Count>
__device__ inline void add_batch(const Rows& s, int j, int end, int column, int n, bool wide,
                                 Lanes<N>& sum) {
  Row row[Count];
  Lanes<N> x[Count];
#pragma unroll
  for (int i = 0; i < Count; ++i) row[i] = j + i < end ? segment_row(s, j + i) : Row{};
#pragma unroll
  for (int i = 0; i < Count; ++i) x[i] = load<N>(row[i], column, n, wide);
#pragma unroll
  for (int i = 0; i < Count; ++i) add(sum, x[i]);
}
// Add n <= N columns from `column` on over rows [j, end) of a segment to `sum`, in ascending order.
// Ahead > 1: loads of so many rows are in flight, of twice as many in long segments.
template <int N, int Ahead>
__device__ inline void add_rows(const Rows& s, int j, int end, int column, int n, bool wide,
                                Lanes<N>& sum) {
  if (Ahead > 1) {
    for (; j + 2 * Ahead <= end; j += 2 * Ahead) {
      add_batch<N, 2 * Ahead>(s, j, j + 2 * Ahead, column, n, wide, sum);
    }
    for (; j < end; j += Ahead) add_batch<N, Ahead>(s, j, end, column, n, wide, sum);
  }
#pragma unroll 1
  for (; j < end; ++j) {
    const Row row = segment_row(s, j);
    if (!row.none()) add(sum, load<N>(row, column, n, wide));
  }
}

// N columns from `column` on of row r; zeros past the width. `row` is plain_row(s, r), unless the
// rows are segments.
template <int N>
__device__ inline Lanes<N> read_columns(const Rows& s, long long r, const Row& row, int column,
                                        bool wide) {
  const int n = s.width - column;
  if (s.map != 3) return load<N>(n > 0 ? row : Row{}, column, n, wide);
  Lanes<N> sum = {};
  if (n > 0) add_rows<N, 1>(s, s.offsets[r], s.offsets[r + 1], column, n, wide, sum);
  return sum;
}

// Number of threads that share a row of so many vectors: a power of two, at most `most`.
__device__ inline int lanes_of_row(long long vectors, int most) {
  int lanes = most;
  while (lanes > 1 && lanes / 2 >= vectors) lanes /= 2;
  return lanes;
}
