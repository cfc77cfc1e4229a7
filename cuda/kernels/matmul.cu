// Products. matmul: a block a tile of 64 x 64, sources gathered as they are read; matmul_16: a
// block 16 rows x 64 columns, its warps share the depth and read the weights straight from memory;
// matmul_tn: a block a tile of 64 x 64 and one part of the rows. Blocks stride over tiles.
#include "tile.cuh"

namespace {

// One tile of out = A w: rows from r0, columns from n0 on.
__device__ void matmul_tile(const Sources& a, long long r0, int end, const real* w, int n, int n0,
                            real* out, long long stride, long long base, int accumulate,
                            real* shared) {
  const long long r = r0 + threadIdx.x / 4;  // this thread's row of A's slabs
  const int ka = threadIdx.x % 4 * 4, kb = threadIdx.x / 16, nb = n0 + threadIdx.x % 16 * 4;
  const bool wide_w = aligned(w) && n % kWide == 0;
  const real* row = nullptr;
  bool wide = false;
  int known = -1;  // the source of `row`
  Walk walk = {};
  Lanes<4> x, y;
  const auto fetch = [&] {
    const Rows& s = a.of[walk.source];
    if (walk.source != known) {
      known = walk.source;
      wide = aligned(s);
      row = s.map != 3 && r < end ? plain_row(s, r) : nullptr;
    }
    x = r < end ? read<4>(s, r, row, walk.column + ka, wide) : Lanes<4>{};
    const int k = walk.column + kb;
    const real* of_w = w + static_cast<long long>(walk.before + k) * n + nb;
    y = load<4>(k < s.width ? of_w : nullptr, n - nb, wide_w);
  };
  const auto put = [&](real* slab) {
#pragma unroll
    for (int i = 0; i < 4; ++i) slab[(ka + i) * kPitch + threadIdx.x / 4] = x.v[i];
    store(slab + kDepth * kPitch + kb * kTile + threadIdx.x % 16 * 4, y);
  };
  real sum[kSide][kSide] = {};
  bool more = walk.start(a);
  if (more) {
    fetch();
    put(shared);
    __syncthreads();
  }
  for (int slab = 0; more; slab ^= 1) {
    more = walk.next(a, kDepth);
    if (more) fetch();
    const real* current = shared + slab * kSlab;
    multiply(current, current + kDepth * kPitch, sum);
    if (more) put(shared + (slab ^ 1) * kSlab);
    __syncthreads();
  }
  finish(sum, shared, [&](int i, int j, real value) {
    if (r0 + i >= end || n0 + j >= n) return;
    real* to = out + (r0 + i - base) * stride + n0 + j;
    *to = accumulate ? *to + value : value;
  });
}

constexpr int kFewRows = 16, kFewDepth = 64;  // rows of a small tile, depth of its slabs
constexpr int kFewPitch = kFewDepth + 4;
constexpr int kShare = kFewDepth / (kThreads / 32);  // of a warp
constexpr int kFewTile = kFewRows * kTile;

// One tile of 16 rows. A lane has two columns; a warp kShare of every kFewDepth rows of w.
__device__ void matmul_few(const Sources& a, long long r0, int end, const real* w, int n, int n0,
                           real* out, long long stride, long long base, int accumulate,
                           real* shared) {
  const int warp = threadIdx.x / 32, column = n0 + threadIdx.x % 32 * 2;
  const long long r = r0 + threadIdx.x / 16;
  const int ka = threadIdx.x % 16 * 4;
  const bool wide_w = aligned(w) && n % 2 == 0;
  const real* row = nullptr;
  bool wide = false;
  int known = -1;
  Walk walk = {};
  Lanes<4> x;
  Lanes<2> y[kShare];
  const auto fetch = [&] {
    const Rows& s = a.of[walk.source];
    if (walk.source != known) {
      known = walk.source;
      wide = aligned(s);
      row = s.map != 3 && r < end ? plain_row(s, r) : nullptr;
    }
    x = r < end ? read<4>(s, r, row, walk.column + ka, wide) : Lanes<4>{};
    const int k = walk.column + warp * kShare;
    const real* of_w = w + static_cast<long long>(walk.before + k) * n + column;
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      y[i] = load<2>(k + i < s.width ? of_w + static_cast<long long>(i) * n : nullptr, n - column,
                     wide_w);
    }
  };
  const auto put = [&](real* slab) { store(slab + threadIdx.x / 16 * kFewPitch + ka, x); };
  real sum[kFewRows][2] = {};
  bool more = walk.start(a);
  if (more) {
    fetch();
    put(shared);
    __syncthreads();
  }
  for (int slab = 0; more; slab ^= 1) {
    const real* current = shared + slab * kFewRows * kFewPitch + warp * kShare;
    Lanes<2> weights[kShare];
#pragma unroll
    for (int i = 0; i < kShare; ++i) weights[i] = y[i];
    more = walk.next(a, kFewDepth);
    if (more) fetch();
#pragma unroll
    for (int m = 0; m < kFewRows; ++m) {
#pragma unroll
      for (int k = 0; k < kShare; k += 4) {
        const Lanes<4> z = load<4>(current + m * kFewPitch + k, 4, true);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sum[m][0] += z.v[i] * weights[k + i].v[0];
          sum[m][1] += z.v[i] * weights[k + i].v[1];
        }
      }
    }
    if (more) put(shared + (slab ^ 1) * kFewRows * kFewPitch);
    __syncthreads();
  }
  // Warp w and warp w + 4 add up, then the four sums of an element.
  real* mine = shared + warp % 4 * kFewTile + threadIdx.x % 32 * 2;
  for (int half = 1; half >= 0; --half) {
    if (warp / 4 == half) {
#pragma unroll
      for (int m = 0; m < kFewRows; ++m) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (half == 0) sum[m][i] += mine[m * kTile + i];
          mine[m * kTile + i] = sum[m][i];
        }
      }
    }
    __syncthreads();
  }
  for (int i = threadIdx.x; i < kFewTile; i += kThreads) {
    const int m = i / kTile, j = i % kTile;
    if (r0 + m >= end || n0 + j >= n) continue;
    real total = shared[i];
    for (int part = 1; part < 4; ++part) total += shared[part * kFewTile + i];
    real* to = out + (r0 + m - base) * stride + n0 + j;
    *to = accumulate ? *to + total : total;
  }
  __syncthreads();
}

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
    if (together) {
      const Rows& s = a.of[source];
      return read<4>(s, r, s.map != 3 ? plain_row(s, r) : nullptr, column, wide);
    }
    Lanes<4> x = {};
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      int s = source, c = column + i;
      while (s < a.count && c >= a.of[s].width) c -= a.of[s++].width;
      if (s == a.count) break;
      const Rows& rows = a.of[s];
      const real* row = rows.map != 3 ? plain_row(rows, r) : nullptr;
      const real value = read<1>(rows, r, row, c, false).v[0];
#pragma unroll
      for (int j = 0; j < 4; ++j) x.v[j] = j == i ? value : x.v[j];
    }
    return x;
  }
};

// One tile of out = sum over rows [first, last) of A(r)^T B(r): rows from k0, columns from n0 on.
__device__ void matmul_tn_tile(const Sources& a, const Sources& b, long long first, long long last,
                               int k, int n, int k0, int n0, real* out, long long stride,
                               bool accumulate, real* shared) {
  const int depth = threadIdx.x / 16, at = threadIdx.x % 16 * 4;
  const FourColumns of_a(a, k0 + at), of_b(b, n0 + at);
  Lanes<4> x, y;
  const auto fetch = [&](long long r) {
    const bool inside = r + depth < last;
    x = inside ? of_a.read_row(a, r + depth) : Lanes<4>{};
    y = inside ? of_b.read_row(b, r + depth) : Lanes<4>{};
  };
  const auto put = [&](real* slab) {
    store(slab + depth * kPitch + at, x);
    store(slab + kDepth * kPitch + depth * kTile + at, y);
  };
  real sum[kSide][kSide] = {};
  fetch(first);
  put(shared);
  __syncthreads();
  int slab = 0;
  for (long long r = first; r < last; r += kDepth, slab ^= 1) {
    const bool more = r + kDepth < last;
    if (more) fetch(r + kDepth);
    const real* current = shared + slab * kSlab;
    multiply(current, current + kDepth * kPitch, sum);
    if (more) put(shared + (slab ^ 1) * kSlab);
    __syncthreads();
  }
  finish(sum, shared, [&](int i, int j, real value) {
    if (k0 + i >= k || n0 + j >= n) return;
    real* to = out + (k0 + i) * stride + n0 + j;
    *to = accumulate ? *to + value : value;
  });
}

}  // namespace

CAVS_KERNEL matmul(Sources a, int begin, int end, const real* w, int k, int n, real* out,
                   long long stride, long long base, int accumulate) {
  alignas(16) __shared__ real shared[2 * kSlab];
  for (long long r0 = begin + static_cast<long long>(blockIdx.y) * kTile; r0 < end;
       r0 += static_cast<long long>(gridDim.y) * kTile) {
    for (int n0 = blockIdx.x * kTile; n0 < n; n0 += gridDim.x * kTile) {
      matmul_tile(a, r0, end, w, n, n0, out, stride, base, accumulate, shared);
    }
  }
}

CAVS_KERNEL matmul_16(Sources a, int begin, int end, const real* w, int k, int n, real* out,
                      long long stride, long long base, int accumulate) {
  alignas(16) __shared__ real shared[4 * kFewTile];
  for (long long r0 = begin + static_cast<long long>(blockIdx.y) * kFewRows; r0 < end;
       r0 += static_cast<long long>(gridDim.y) * kFewRows) {
    for (int n0 = blockIdx.x * kTile; n0 < n; n0 += gridDim.x * kTile) {
      matmul_few(a, r0, end, w, n, n0, out, stride, base, accumulate, shared);
    }
  }
}

CAVS_KERNEL matmul_tn(Sources a, Sources b, int begin, int end, int k, int n, real* out,
                      long long out_stride, int accumulate, real* partial, int parts) {
  alignas(16) __shared__ real shared[2 * kSlab];
  const long long rows = end - begin;
  for (int part = blockIdx.z; part < parts; part += gridDim.z) {
    const long long first = begin + rows * part / parts, last = begin + rows * (part + 1) / parts;
    real* to = parts > 1 ? partial + static_cast<long long>(part) * k * n : out;
    for (int k0 = blockIdx.y * kTile; k0 < k; k0 += gridDim.y * kTile) {
      for (int n0 = blockIdx.x * kTile; n0 < n; n0 += gridDim.x * kTile) {
        matmul_tn_tile(a, b, first, last, k, n, k0, n0, to, parts > 1 ? n : out_stride,
                       parts == 1 && accumulate, shared);
      }
    }
  }
}
