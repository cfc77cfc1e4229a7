// The operands of products: sources side by side, read slab by slab of the depth of the sum.
#pragma once

#include "rows.cuh"

constexpr int kTile = 64;  // rows and columns of a tile
constexpr int kFew = 16;   // rows of a tile where there are few

// A slab of columns: [column, column + depth) of one source, which may end earlier.
struct Walk {
  int source, column, before;  // `before`: columns of the sources before this one

  __device__ bool start(const Sources& a) {
    source = column = before = 0;
    return settle(a);
  }
  __device__ bool next(const Sources& a, int depth) {
    column += depth;
    return settle(a);
  }
  __device__ bool settle(const Sources& a) {
    while (source < a.count && column >= a.of[source].width) {
      before += a.of[source++].width;
      column = 0;
    }
    return source < a.count;
  }
};

// One row of sources side by side, read by a thread as a walk goes on.
struct RowOfSources {
  long long r;
  bool inside;                // else all zeros
  int source = -1;            // that of `row`
  const real* row = nullptr;  // where no segment is summed
  bool wide = false;

  __device__ RowOfSources(long long r, int end) : r(r), inside(r < end) {}

  // Columns walk.column + first and the three behind it; zeros past the width.
  __device__ Lanes<4> read(const Sources& a, const Walk& walk, int first) {
    if (!inside) return {};
    const Rows& s = a.of[walk.source];
    if (walk.source != source) {
      source = walk.source;
      wide = aligned(s);
      row = s.map != 3 ? plain_row(s, r) : nullptr;
    }
    return read_columns<4>(s, r, row, walk.column + first, wide);
  }
};

// Four columns of sources side by side, those of one thread.
struct FourColumns {
  int source, column;
  bool together, wide;  // all of one source; aligned

  __device__ FourColumns(const Sources& a, int c) : source(0), column(c) {
    while (source < a.count && column >= a.of[source].width) column -= a.of[source++].width;
    together = source < a.count && (column + 4 <= a.of[source].width || source == a.count - 1);
    wide = together && column % kWide == 0 && aligned(a.of[source]);
  }

  __device__ Lanes<4> read_row(const Sources& a, long long r) const {
    if (together) return read_of(a.of[source], r, column, wide);
    Lanes<4> x = {};
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      int s = source, c = column + i;
      while (s < a.count && c >= a.of[s].width) c -= a.of[s++].width;
      if (s == a.count) break;
      const real value = read_of(a.of[s], r, c, false).v[0];
#pragma unroll
      for (int j = 0; j < 4; ++j) x.v[j] = j == i ? value : x.v[j];
    }
    return x;
  }

  static __device__ Lanes<4> read_of(const Rows& s, long long r, int c, bool wide) {
    return read_columns<4>(s, r, s.map != 3 ? plain_row(s, r) : nullptr, c, wide);
  }
};

// Four columns of row `i` of the weights of a walk's slab; zeros past its depth and past n.
__device__ inline Lanes<4> read_weights(const Sources& a, const Walk& walk, const real* w, int i,
                                        int n, int column, bool wide) {
  const int k = walk.column + i;
  if (k >= a.of[walk.source].width || column >= n) return {};
  return load<4>(w + static_cast<long long>(walk.before + k) * n + column, n - column, wide);
}

// Slabs through two buffers: the next one is on its way to registers while one is multiplied.
// next() says whether a slab follows, put(i) and multiply(i) name a buffer.
template <class Next, class Fetch, class Put, class Multiply>
__device__ void for_each_slab(bool more, Next next, Fetch fetch, Put put, Multiply multiply) {
  if (more) {
    fetch();
    put(0);
  }
  __syncthreads();
  for (int buffer = 0; more; buffer ^= 1) {
    more = next();
    if (more) fetch();
    multiply(buffer);
    if (more) put(buffer ^ 1);
    __syncthreads();
  }
}

// Tiles [0, rows) x [0, columns) of `height` x kTile, shared among the blocks of a grid.
template <class F>
__device__ void for_each_tile(int begin, int end, int height, int n, F f) {
  for (long long r0 = begin + static_cast<long long>(blockIdx.y) * height; r0 < end;
       r0 += static_cast<long long>(gridDim.y) * height) {
    for (long long n0 = static_cast<long long>(blockIdx.x) * kTile; n0 < n;
         n0 += static_cast<long long>(gridDim.x) * kTile) {
      f(r0, static_cast<int>(n0));
    }
  }
}

// Where the elements of a product go.
struct Output {
  real* data;
  long long stride;  // of rows, which are numbered from 0
  long long rows, columns;
  bool accumulate;

  __device__ void write(long long row, long long column, real value) const {
    if (row >= rows || column >= columns) return;
    real* to = data + row * stride + column;
    *to = accumulate ? *to + value : value;
  }
};

// Tiles of a k x n sum over rows [begin, end), which blockIdx.z shares out in parts.
template <class F>
__device__ void for_each_part(int begin, int end, int k, int n, real* out, long long stride,
                              bool accumulate, real* partial, int parts, F f) {
  const long long rows = end - begin;
  for (int part = blockIdx.z; part < parts; part += gridDim.z) {
    const long long first = begin + rows * part / parts, last = begin + rows * (part + 1) / parts;
    Output to = {out, stride, k, n, accumulate};
    if (parts > 1) to = {partial + static_cast<long long>(part) * k * n, n, k, n, false};
    for_each_tile(0, k, kTile, n, [&](long long k0, int n0) { f(first, last, k0, n0, to); });
  }
}

constexpr int kLaneSums = kFew * kTile / 32;    // of a lane that has part of a small tile
constexpr int kFewShared = 4 * kLaneSums * 33;  // values

// Adds the sums of the eight warps, each of a share of the depth, in one order. Value i of a lane
// stands at place 33 i + lane; place(row, column) is that of an element. f(row, column, value).
template <class Place, class F>
__device__ void add_warps(const real (&sum)[kLaneSums], real* shared, Place place, F f) {
  const int warp = threadIdx.x / 32;
  real* mine = shared + warp % 4 * (kLaneSums * 33) + threadIdx.x % 32;
#pragma unroll
  for (int half = 1; half >= 0; --half) {
    if (warp / 4 == half) {
#pragma unroll
      for (int i = 0; i < kLaneSums; ++i) {
        mine[33 * i] = half == 1 ? sum[i] : sum[i] + mine[33 * i];
      }
    }
    __syncthreads();
  }
  for (int i = threadIdx.x; i < kFew * kTile; i += kThreads) {
    const int row = i / kTile, column = i % kTile;
    const real* at = shared + place(row, column);
    real total = at[0];
#pragma unroll
    for (int part = 1; part < 4; ++part) total += at[part * (kLaneSums * 33)];
    f(row, column, total);
  }
  __syncthreads();  // `shared` may be written again
}
