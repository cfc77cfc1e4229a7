// Operands of products: concatenated sources, read in slabs of the depth.
#pragma once

#include "rows.cuh"

constexpr int kTile = 64;  // rows and columns of a tile
constexpr int kFew = 16;   // rows of a tile in products of few rows

// A slab: columns [column, column + depth) of one source, which may end earlier.
struct Walk {
  int source, column, before;  // before: columns of earlier sources

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

// A part of a walk over slabs: `parts` consecutive ranges, whose sizes differ by at most one.
struct PartOfWalk : Walk {
  int left;  // slabs left, with the current one

  __device__ bool start(const Sources& a, int depth, int part, int parts) {
    int slabs = 0;
    for (int s = 0; s < a.count; ++s) slabs += ceil_div(a.of[s].width, depth);
    const int first = slabs * part / parts;
    left = slabs * (part + 1) / parts - first;
    Walk::start(a);
    for (int i = 0; i < first; ++i) Walk::next(a, depth);
    return left > 0;
  }
  __device__ bool next(const Sources& a, int depth) { return --left > 0 && Walk::next(a, depth); }
};

// Destination of a tile: rows from r0 and columns from n0 on, up to `end` and `n`. The address is
// computed at the end, to save registers until then.
struct Target {
  void* out;
  long long stride, base, r0, end;
  int n0, n, accumulate;
  bool half;
  // For a split sum: partial sums, of rows from `begin` on, and the number of this part.
  real* partial = nullptr;
  int begin = 0, part = 0;

  // Write N columns from j on of row i, in one access if the address is aligned.
  template <int N>
  __device__ void write(int i, int j, const Lanes<N>& x) const {
    const int left = n - n0 - j;
    if (r0 + i >= end) return;
    if (partial != nullptr) {
      const long long row = part * (end - begin) + r0 + i - begin;
      write_to(partial + row * n + n0 + j, left, x, false);
      return;
    }
    const long long at = (r0 + i - base) * stride + n0 + j;
    if (kHalf && half) {
      write_to(static_cast<bfloat16*>(out) + at, left, x, accumulate);
    } else {
      write_to(static_cast<real*>(out) + at, left, x, accumulate);
    }
  }

  template <int N, class V>
  static __device__ void write_to(V* to, int left, const Lanes<N>& x, bool more) {
    if (left >= N && reinterpret_cast<unsigned long long>(to) % alignof(Lanes<N, V>) == 0) {
      Lanes<N> sum = x;
      if (more) add(sum, take<N>(to));
      store(to, sum);
      return;
    }
#pragma unroll
    for (int c = 0; c < N; ++c) {
      if (c < left) assign(to[c], more ? widened(to[c]) + x.v[c] : x.v[c]);
    }
  }
};

// One row of concatenated sources, read by a thread along a walk.
struct RowOfSources {
  long long r;
  bool inside;      // if not, all zeros
  int source = -1;  // source of `row`
  Row row = {};     // unless a segment is summed
  bool wide = false;

  __device__ RowOfSources(const Target& to, int i) : r(to.r0 + i), inside(r < to.end) {}

  // Columns walk.column + first and the next three; zeros past the width.
  __device__ Lanes<4> read(const Sources& a, const Walk& walk, int first) {
    if (!inside) return {};
    const Rows& s = a.of[walk.source];
    if (walk.source != source) {
      source = walk.source;
      wide = aligned(s);
      row = s.map != 3 ? plain_row(s, r) : Row{};
    }
    return read_columns<4>(s, r, row, walk.column + first, wide);
  }
};

// Four columns of row `i` of the weights of a slab; zeros past its depth and past n.
template <class V>
__device__ inline Lanes<4> read_weights(const Sources& a, const Walk& walk, const V* w, int i,
                                        int n, int column, bool wide) {
  const int k = walk.column + i;
  if (k >= a.of[walk.source].width || column >= n) return {};
  return load<4>(w + static_cast<long long>(walk.before + k) * n + column, n - column, wide);
}

// Multiply slabs with two buffers: the next slab is loaded to registers while one is multiplied.
// next() returns false after the last slab; put(i) and multiply(i) name a buffer.
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

// Tiles of `height` x kTile of a product over rows [begin, end), shared by the blocks of a grid.
template <class F>
__device__ void for_each_tile(int begin, int end, int height, int n, void* out, long long stride,
                              long long base, int half, int accumulate, F f) {
  for (long long r0 = begin + static_cast<long long>(blockIdx.y) * height; r0 < end;
       r0 += static_cast<long long>(gridDim.y) * height) {
    for (long long n0 = static_cast<long long>(blockIdx.x) * kTile; n0 < n;
         n0 += static_cast<long long>(gridDim.x) * kTile) {
      f(Target{out, stride, base, r0, end, static_cast<int>(n0), n, accumulate, half != 0});
    }
  }
}

// True in the last of `parts` blocks to arrive, which then sees the writes of the others. The
// counter is zero before the first and after the last.
__device__ inline bool last_to_arrive(unsigned* arrived, int parts) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(arrived, 1u) + 1 == static_cast<unsigned>(parts);
    if (last) *arrived = 0;
  }
  __syncthreads();
  if (last) __threadfence();
  return last;
}

// Add the parts of a small tile in order; a thread adds four columns.
__device__ inline void add_parts(const real* partial, int parts, int begin, const Target& to) {
  const int row = threadIdx.x / 16, column = threadIdx.x % 16 * 4, left = to.n - to.n0 - column;
  if (to.r0 + row >= to.end || left <= 0) return;
  const bool wide = aligned(partial) && to.n % kWide == 0;
  const long long size = (to.end - begin) * to.n;
  const real* at = partial + (to.r0 + row - begin) * to.n + to.n0 + column;
  Lanes<4> sum = {};
#pragma unroll 4
  for (int part = 0; part < parts; ++part) add(sum, load<4>(at + part * size, left, wide));
  to.write(row, column, sum);
}

// Tiles of few rows, with blockIdx.z striding over parts of the depth. Partial sums are stored in
// `partial`, one part after the other; the last block of a tile adds them. arrived: a counter per
// tile. Calls f(target, part).
template <class F>
__device__ void for_each_few(int begin, int end, int n, void* out, long long stride, long long base,
                             int half, int accumulate, real* partial, int parts, unsigned* arrived,
                             F f) {
  for (int part = blockIdx.z; part < parts; part += gridDim.z) {
    for_each_tile(begin, end, kFew, n, out, stride, base, half, accumulate, [&](const Target& to) {
      Target own = to;
      own.partial = parts > 1 ? partial : nullptr, own.begin = begin, own.part = part;
      f(own, part);
      const long long tile = (to.r0 - begin) / kFew * ceil_div(n, kTile) + to.n0 / kTile;
      if (parts > 1 && last_to_arrive(arrived + tile, parts)) {
        add_parts(partial, parts, begin, to);
      }
    });
  }
}

// One operand of a product over rows: up to 64 columns of one source.
struct Side {
  const Rows& rows;
  int column;
  bool wide;

  __device__ Side(const Sources& s, const Walk& walk)
      : rows(s.of[walk.source]), column(walk.column), wide(aligned(rows)) {}

  // Columns `first` to `first` + 3 of row r; zeros unless r < end.
  __device__ Lanes<4> read(int r, int end, int first) const {
    if (r >= end) return {};
    const Row row = rows.map != 3 ? plain_row(rows, r) : Row{};
    return read_columns<4>(rows, r, row, column + first, wide);
  }
};

// Tiles of a sum of k x n products over rows [begin, end), each of one source per side; blockIdx.z
// strides over parts of the rows. Calls f(side of a, side of b, first row, last row, target).
template <class F>
__device__ void for_each_part(const Sources& a, const Sources& b, int begin, int end, int k, int n,
                              real* out, long long stride, int accumulate, real* partial, int parts,
                              F f) {
  const long long rows = end - begin;
  for (int part = blockIdx.z; part < parts; part += gridDim.z) {
    const int first = static_cast<int>(begin + rows * part / parts);
    const int last = static_cast<int>(begin + rows * (part + 1) / parts);
    if (parts > 1) stride = n, accumulate = 0, out = partial + part * stride * k;
    Walk y = {}, x = {};
    unsigned row = 0;
    for (bool down = y.start(a); down; down = y.next(a, kTile), ++row) {
      if (row % gridDim.y != blockIdx.y) continue;
      unsigned column = 0;
      for (bool right = x.start(b); right; right = x.next(b, kTile), ++column) {
        if (column % gridDim.x != blockIdx.x) continue;
        const int height = y.before + a.of[y.source].width;
        const int width = x.before + b.of[x.source].width;
        const Target to = {
            out,   stride,     0,    y.before + y.column, height, x.before + x.column,
            width, accumulate, false};
        f(Side(a, y), Side(b, x), first, last, to);
      }
    }
  }
}

constexpr int kLaneSums = kFew * kTile / 32;    // sums per lane of a small tile
constexpr int kFewShared = 4 * kLaneSums * 33;  // values

// Add the sums of the eight warps, each over a share of the depth, in a fixed order. Value i of a
// lane is stored at 33 i + lane; index(row, column) is the position of an element.
template <class Index>
__device__ void add_warps(const real (&sum)[kLaneSums], real* shared, Index index,
                          const Target& to) {
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
    const real* at = shared + index(row, column);
    real total = at[0];
#pragma unroll
    for (int part = 1; part < 4; ++part) total += at[part * (kLaneSums * 33)];
    to.write(row, column, Lanes<1>{total});
  }
  __syncthreads();  // `shared` is reused
}
