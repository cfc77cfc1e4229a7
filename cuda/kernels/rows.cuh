// Reading rows: where a row lies, and loads of several columns at once.
#pragma once

#include "arguments.cuh"

constexpr int kThreads = 256;               // of every block
constexpr int kWide = 16 / sizeof(real);    // values of a 16-byte access
constexpr unsigned kAllLanes = 0xffffffff;  // of a warp

// N values, moved 16 bytes at a time.
template <int N>
struct alignas(N * sizeof(real) < 16 ? N * sizeof(real) : 16) Lanes {
  real v[N];
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
// Whether 16-byte accesses may read every row from column 0 on.
__device__ inline bool aligned(const Rows& s) {
  return aligned(s.data) && (s.map == 1 || s.stride % kWide == 0);
}

// Row r of a map that is no segment; null: a row of zeros.
__device__ inline const real* plain_row(const Rows& s, long long r) {
  if (s.map == 0) return s.data + (r - s.base) * s.stride;
  if (s.map == 1) return s.data;
  const int i = s.index[r];
  return i < 0 ? nullptr : s.data + (i - s.base) * s.stride;
}

// Row number j of a segment; null: it adds nothing.
__device__ inline const real* segment_row(const Rows& s, int j) {
  const int i = s.index != nullptr ? s.index[j] : j;
  return i < 0 ? nullptr : s.data + (i - s.base) * s.stride;
}

// The first n of N values at p, zeros behind them; zeros alone where p is null.
template <int N>
__device__ inline Lanes<N> load(const real* p, int n, bool wide) {
  if (wide && p != nullptr && n >= N) return *reinterpret_cast<const Lanes<N>*>(p);
  Lanes<N> x;
#pragma unroll
  for (int i = 0; i < N; ++i) x.v[i] = p != nullptr && i < n ? p[i] : real(0);
  return x;
}

template <int N>
__device__ inline void store(real* p, const Lanes<N>& x) {
  *reinterpret_cast<Lanes<N>*>(p) = x;
}

template <int N>
__device__ inline void add(Lanes<N>& sum, const Lanes<N>& x) {
#pragma unroll
  for (int i = 0; i < N; ++i) sum.v[i] += x.v[i];
}

// N columns from `column` on, n of which exist, added over rows [j, end) of a segment in ascending
// order to `sum`. `Ahead` rows are on their way at a time.
template <int N, int Ahead>
__device__ inline void add_rows(const Rows& s, int j, int end, int column, int n, bool wide,
                                Lanes<N>& sum) {
  for (; Ahead > 1 && j + Ahead <= end; j += Ahead) {
    const real* row[Ahead];
    Lanes<N> x[Ahead];
#pragma unroll
    for (int i = 0; i < Ahead; ++i) row[i] = segment_row(s, j + i);
#pragma unroll
    for (int i = 0; i < Ahead; ++i) {
      x[i] = load<N>(row[i] != nullptr ? row[i] + column : nullptr, n, wide);
    }
#pragma unroll
    for (int i = 0; i < Ahead; ++i) add(sum, x[i]);
  }
#pragma unroll 1
  for (; j < end; ++j) {
    const real* row = segment_row(s, j);
    if (row != nullptr) add(sum, load<N>(row + column, n, wide));
  }
}

// N columns from `column` on of row r; zeros past the width. `row` is plain_row(s, r), unless the
// rows are segments.
template <int N, int Ahead = 1>
__device__ inline Lanes<N> read_columns(const Rows& s, long long r, const real* row, int column,
                                        bool wide) {
  const int n = s.width - column;
  if (s.map != 3) return load<N>(row != nullptr && n > 0 ? row + column : nullptr, n, wide);
  Lanes<N> sum = {};
  if (n > 0) add_rows<N, Ahead>(s, s.offsets[r], s.offsets[r + 1], column, n, wide, sum);
  return sum;
}

// Threads that share a row of so many vectors: a power of two, at most `most`.
__device__ inline int lanes_of_row(long long vectors, int most) {
  int lanes = most;
  while (lanes > 1 && lanes / 2 >= vectors) lanes /= 2;
  return lanes;
}
