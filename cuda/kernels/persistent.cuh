// Building blocks of persistent kernels, which run many tasks of a loop: barriers of the grid, and
// products whose weights stay in shared memory. A block computes one slice of the columns of every
// result, for all rows.
#pragma once

#include "persistent_chunk.cuh"
#include "persistent_share.cuh"

constexpr int kTileRows = 16;  // rows of a tile, which a warp multiplies at once
constexpr int kWarps = kThreads / 32;
constexpr int kAhead = 8;                                  // chunks of rows in flight
constexpr unsigned kPolls = 1024;                          // polls between reads of the clock
constexpr unsigned long long kPatience = 100'000'000'000;  // timeout of a barrier in nanoseconds

// A barrier of the grid: writes of any block before it are visible to all blocks after it.
// `arrived` keeps counting over launches, which all have the same number of blocks and leave a
// multiple of it.
struct GridBarrier {
  unsigned long long *arrived, goal = 0;

  __device__ explicit GridBarrier(unsigned long long* count) : arrived(count) {
#ifndef CAVS_TWIN
    if (threadIdx.x == 0) goal = seen() / gridDim.x * gridDim.x;
#endif
  }
#ifndef CAVS_TWIN
  __device__ unsigned long long seen() const {
    unsigned long long n;
    asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(n) : "l"(arrived) : "memory");
    return n;
  }
  static __device__ unsigned long long now() {
    unsigned long long nanoseconds;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
    return nanoseconds;
  }
#endif
  __device__ void wait() {
#ifdef CAVS_TWIN
    twin::grid_barrier();
#else
    __syncthreads();
    if (threadIdx.x == 0) {
      goal += gridDim.x;
      asm volatile("red.release.gpu.add.u64 [%0], %1;" ::"l"(arrived), "l"(1ull) : "memory");
      const unsigned long long start = now();
      for (unsigned polls = 1; seen() < goal; ++polls) {
        if (polls % kPolls == 0 && now() - start > kPatience) __trap();
      }
    }
    __syncthreads();
#endif
  }
};

// A block's columns of a weight that has `n` columns in memory.
struct Weights {
  const Packed* memory;
  const Packed* shared;  // in the order of reads, by eight columns; null if they do not fit
  int n, chunks;         // chunks of all sources
  Columns columns;

  // The lane's values of column 8 * eight + g at depth `k` and following, of which `left` exist, or
  // of chunk number `chunk` over all sources.
  __device__ Lanes<4> read(int eight, int k, int left) const {
    const int column = columns.at(eight * 8 + threadIdx.x % 32 / 4);
    Lanes<4> x;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x.v[i] = column >= 0 && i < left ? widened(memory[static_cast<long long>(k + i) * n + column])
                                       : real(0);
    }
    return x;
  }
  __device__ long long index_of(int eight, int chunk) const {
    return ((static_cast<long long>(eight) * chunks + chunk) * 32 + threadIdx.x % 32) * 4;
  }
  __device__ Lanes<4> take_shared(int eight, int chunk) const {
    return take<4>(shared + index_of(eight, chunk));
  }
};

// Copy a block's columns, 8 * `eights` of them, to shared memory. A barrier must follow.
__device__ inline void keep_weights(const Sources& a, const Weights& w, Packed* to, int eights) {
  int before = 0, chunks = 0;
  for (int s = 0; s < a.count; ++s) {
    const int width = a.of[s].width, own = ceil_div(width, kChunk);
    for (int i = threadIdx.x / 32; i < own * eights; i += kWarps) {
      const int eight = i / own, k = i % own * kChunk + threadIdx.x % 4 * 4;
      store(to + w.index_of(eight, chunks + i % own), w.read(eight, before + k, width - k));
    }
    before += width;
    chunks += own;
  }
}

// Four aligned values of a row from `column` on; zeros if they do not exist.
__device__ inline Lanes<4> take_row(const Row& row, int column, bool there) {
  if (!there || row.none()) return {};
  if (kHalf && row.half) return take<4>(row.from<bfloat16>(column));
  return take<4>(row.from<real>(column));
}

// Add chunks [from, to) of a source to the sums of rows `upper` and `upper` + 8, if below `end`.
// before, chunks: columns and chunks of earlier sources. Plain: the rows are not segments, and a
// multiple of four values wide.
template <class P, int Eights, bool Shared, bool Plain>
__device__ inline void add_source(const Rows& s, long long upper, long long end, int from, int to,
                                  const Weights& w, int first_eight, int before, int chunks,
                                  real (&sum)[Eights][4]) {
  constexpr int ahead = Plain ? kAhead : 1;
  const int t = threadIdx.x % 4 * 4;
  Row rows[2] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (s.map != 3 && upper + h * 8 < end) rows[h] = plain_row(s, upper + h * 8);
  }
#pragma unroll 1
  for (int c = from; c < to; c += ahead) {
    Lanes<4> x[ahead][2];
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      const int column = (c + i) * kChunk + t;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (Plain) {
          x[i][h] = take_row(rows[h], column, c + i < to && column < s.width);
        } else if (upper + h * 8 < end) {
          x[i][h] = read_columns<4>(s, upper + h * 8, rows[h], column, aligned(s));
        } else {
          x[i][h] = {};
        }
      }
    }
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      if (c + i >= to) break;
      const int k = (c + i) * kChunk + t;
#pragma unroll
      for (int j = 0; j < Eights; ++j) {
        const Lanes<4> y = Shared ? w.take_shared(first_eight + j, chunks + c + i)
                                  : w.read(first_eight + j, before + k, s.width - k);
        P::multiply(sum[j], x[i][0], x[i][1], y);
      }
    }
  }
}

// Compute the block's columns of a product over the rows of a task, 8 * `Eights` columns at a time.
// Up to eight warps compute a tile each; for fewer tiles, warps share the depth of one. parts: room
// for the sums of all warps. Shared: the weights are in shared memory.
template <class P, int Eights, bool Shared, class Out>
__device__ void product(const Sources& a, const First& first, const Span& span, const Weights& w,
                        int eights, const Out& out, real* parts) {
  constexpr int width = Eights * 8, pitch = width + 2;
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int count = ceil_div(span.size(), kTileRows);
  int tiles = 1;  // computed at once
  while (tiles < kWarps && tiles * 2 <= count) tiles *= 2;
  const int shares = kWarps / tiles, share = warp % shares;
  const int begin = w.chunks * share / shares, end = w.chunks * (share + 1) / shares;
  for (int tile = 0; tile < count; tile += tiles) {
    for (int eight = 0; eight < eights; eight += Eights) {
      real sum[Eights][4] = {};
      const int own = tile + warp / shares;
      const long long upper = span.begin + static_cast<long long>(own) * kTileRows + g;
      int before = 0, chunks = 0;
      for (int s = 0; s < a.count; ++s) {
        const Rows rows = first.of(a, s);
        const int all = ceil_div(rows.width, kChunk);
        const int from = begin > chunks ? begin - chunks : 0;
        const int to = end - chunks < all ? end - chunks : all;
        if (own < count && from < to) {
          if (rows.map != 3 && rows.width % 4 == 0 && aligned(rows)) {
            add_source<P, Eights, Shared, true>(rows, upper, span.end, from, to, w, eight, before,
                                                chunks, sum);
          } else {
            add_source<P, Eights, Shared, false>(rows, upper, span.end, from, to, w, eight, before,
                                                 chunks, sum);
          }
        }
        before += rows.width;
        chunks += all;
      }
#pragma unroll
      for (int j = 0; j < Eights; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          parts[(warp * kTileRows + i / 2 * 8 + g) * pitch + j * 8 + t * 2 + i % 2] = sum[j][i];
        }
      }
      __syncthreads();
      for (int i = threadIdx.x; i < tiles * kTileRows * width; i += kThreads) {
        const int row = i / width, column = w.columns.at(eight * 8 + i % width);
        const long long r = span.begin + static_cast<long long>(tile) * kTileRows + row;
        if (r >= span.end || column < 0) continue;
        const real* at =
            parts + (row / kTileRows * shares * kTileRows + row % kTileRows) * pitch + i % width;
        real x = at[0];
        for (int k = 1; k < shares; ++k) x += at[k * kTileRows * pitch];
        out.write({r, column, eight * 8 + i % width}, x);
      }
      __syncthreads();  // `parts` is reused
    }
  }
}

// Call f(spot) for the block's columns of the rows of a task.
template <class F>
__device__ void for_each_value(const Span& span, const Columns& columns, F f) {
  const int own = columns.count();
  for (int i = threadIdx.x; i < span.size() * own; i += kThreads) {
    const int column = columns.at(i % own);
    if (column >= 0) f(Spot{span.begin + i / own, column, i % own});
  }
}

template <class Out>
__device__ void copy_columns(const Rows& in, const Span& span, const Columns& columns,
                             const Out& out) {
  for_each_value(span, columns, [&](const Spot& spot) {
    const Row row = in.map != 3 ? plain_row(in, spot.r) : Row{};
    out.write(spot, read_columns<1>(in, spot.r, row, spot.column, false).v[0]);
  });
}

// Values folded by f(next, f of those before) over a segment, `none` if it is empty.
template <class Out, class F>
__device__ void fold_columns(const Rows& in, const Span& span, const Columns& columns,
                             const Out& out, real none, F f) {
  for_each_value(span, columns, [&](const Spot& spot) {
    real folded = none;
    bool empty = true;
    for (int j = in.offsets[spot.r]; j < in.offsets[spot.r + 1]; ++j) {
      const Row row = segment_row(in, j);
      if (row.none()) continue;
      const real x = row[spot.column];
      folded = empty ? x : f(x, folded);
      empty = false;
    }
    out.write(spot, folded);
  });
}

// The maximum over a segment, or zero if it is empty; NaN is propagated.
template <class Out>
__device__ void max_columns(const Rows& in, const Span& span, const Columns& columns,
                            const Out& out) {
  fold_columns(in, span, columns, out, 0,
               [](real x, real best) { return x > best || x != x ? x : best; });
}

// The product over a segment, or one if it is empty.
template <class Out>
__device__ void product_columns(const Rows& in, const Span& span, const Columns& columns,
                                const Out& out) {
  fold_columns(in, span, columns, out, 1, [](real x, real product) { return product * x; });
}
