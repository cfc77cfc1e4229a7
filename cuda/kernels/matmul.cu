// Matrix products. matmul: a block per tile of 64 x 64, which gathers its sources. matmul_16: a
// block per 16 rows x 64 columns and part of the depth; its warps share the depth and read weights
// from memory. matmul_tn: a block per tile of 64 x 64 and part of the rows. Blocks stride over
// tiles.
#include "tile.cuh"

namespace {

// Blocks per multiprocessor, which bounds the registers.
constexpr int kBlocks = sizeof(real) == 4 ? 2 : 1;

__device__ void matmul_tile(const Sources& a, const real* w, int n, const Target& to,
                            real* shared) {
  const int ka = threadIdx.x % 4 * 4, kb = threadIdx.x / 16, nb = threadIdx.x % 16 * 4;
  RowOfSources row(to, threadIdx.x / 4);
  const bool wide = aligned(w) && n % kWide == 0;
  Walk walk = {};
  Lanes<4> x, y;
  real sum[8][4] = {};
  for_each_slab(
      walk.start(a), [&] { return walk.next(a, kDepth); },
      [&] {
        y = read_weights(a, walk, w, kb, n, to.n0 + nb,
                         wide);  // before the rows, which wait for indices
        x = row.read(a, walk, ka);
      },
      [&](int buffer) {
        real* slab = shared + buffer * kSlab;
#pragma unroll
        for (int i = 0; i < 4; ++i) slab[(ka + i) * kPitch + threadIdx.x / 4] = x.v[i];
        store(slab + kDepth * kPitch + kb * kTile + nb, y);
      },
      [&](int buffer) { multiply(shared + buffer * kSlab, sum); });
  finish(sum, shared, to);
}

constexpr int kFewDepth = 512 / sizeof(real);  // depth of a slab of a small tile
constexpr int kFewPitch = kFewDepth + 4;
constexpr int kShare = kFewDepth / (kThreads / 32);  // depth per warp
static_assert(2 * kFew * kFewPitch <= kFewShared, "slabs lie where sums do later");

// A lane computes two columns; a warp takes kShare of every kFewDepth rows of w.
__device__ void matmul_few(const Sources& a, const real* w, int n, const Target& to, int part,
                           int parts, real* shared) {
  const int first = threadIdx.x / 32 * kShare, column = to.n0 + threadIdx.x % 32 * 2;
  const int ka = threadIdx.x % 16 * 4;
  RowOfSources row(to, threadIdx.x / 16);
  const bool wide = aligned(w) && n % 2 == 0;
  PartOfWalk walk = {};
  Lanes<4> x[kFewDepth / 64];
  Lanes<2> y[kShare], weights[kShare];
  real sum[kLaneSums] = {};  // row m, column c: 2 m + c
  for_each_slab(
      walk.start(a, kFewDepth, part, parts),
      [&] {
#pragma unroll
        for (int i = 0; i < kShare; ++i) weights[i] = y[i];
        return walk.next(a, kFewDepth);
      },
      [&] {
        // Weights first, because they wait for no index. A full share needs no test per row.
        const int depth = a.of[walk.source].width - walk.column - first;
        const real* at = w + static_cast<long long>(walk.before + walk.column + first) * n + column;
        if (wide && column + 2 <= n && depth >= kShare) {
#pragma unroll
          for (int i = 0; i < kShare; ++i) y[i] = take<2>(at + static_cast<long long>(i) * n);
        } else {
#pragma unroll
          for (int i = 0; i < kShare; ++i) {
            const bool there = i < depth && column < n;
            y[i] = load<2>(there ? at + static_cast<long long>(i) * n : nullptr, n - column, wide);
          }
        }
#pragma unroll
        for (int i = 0; i < kFewDepth / 64; ++i) x[i] = row.read(a, walk, i * 64 + ka);
      },
      [&](int buffer) {
        real* slab = shared + (buffer * kFew + threadIdx.x / 16) * kFewPitch + ka;
#pragma unroll
        for (int i = 0; i < kFewDepth / 64; ++i) store(slab + i * 64, x[i]);
      },
      [&](int buffer) {
        const real* slab = shared + buffer * kFew * kFewPitch + first;
#pragma unroll
        for (int m = 0; m < kFew; ++m) {
#pragma unroll
          for (int k = 0; k < kShare; k += 4) {
            const Lanes<4> z = take<4>(slab + m * kFewPitch + k);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              sum[2 * m] += z.v[i] * weights[k + i].v[0];
              sum[2 * m + 1] += z.v[i] * weights[k + i].v[1];
            }
          }
        }
      });
  add_warps(sum, shared, [](int m, int j) { return (2 * m + j % 2) * 33 + j / 2; }, to);
}

// Sum A(r)^T B(r) over rows [first, last).
__device__ void matmul_tn_tile(const Side& a, const Side& b, int first, int last, const Target& to,
                               real* shared) {
  const int depth = threadIdx.x / 16, at = threadIdx.x % 16 * 4;
  int r = first;
  Lanes<4> x, y;
  real sum[8][4] = {};
  for_each_slab(
      first < last, [&] { return (r += kDepth) < last; },
      [&] {
        x = a.read(r + depth, last, at);
        y = b.read(r + depth, last, at);
      },
      [&](int buffer) {
        real* slab = shared + buffer * kSlab;
        store(slab + depth * kPitch + at, x);
        store(slab + kDepth * kPitch + depth * kTile + at, y);
      },
      [&](int buffer) { multiply(shared + buffer * kSlab, sum); });
  finish(sum, shared, to);
}

}  // namespace

extern "C" __global__ __launch_bounds__(256, kBlocks) void matmul(Sources a, int begin, int end,
                                                                  const real* w, int k, int n,
                                                                  void* out, long long stride,
                                                                  long long base, int half,
                                                                  int accumulate) {
  alignas(16) __shared__ real shared[2 * kSlab];
  for_each_tile(begin, end, kTile, n, out, stride, base, half, accumulate,
                [&](const Target& to) { matmul_tile(a, w, n, to, shared); });
}

extern "C" __global__ __launch_bounds__(256, 1) void matmul_16(
    Sources a, int begin, int end, const real* w, int k, int n, void* out, long long stride,
    long long base, int half, int accumulate, real* partial, int parts, unsigned* arrived) {
  alignas(16) __shared__ real shared[kFewShared];
  for_each_few(begin, end, n, out, stride, base, half, accumulate, partial, parts, arrived,
               [&](const Target& to, int part) { matmul_few(a, w, n, to, part, parts, shared); });
}

extern "C" __global__ __launch_bounds__(256, kBlocks) void matmul_tn(
    Sources a, Sources b, int begin, int end, int k, int n, real* out, long long out_stride,
    int accumulate, real* partial, int parts) {
  alignas(16) __shared__ real shared[2 * kSlab];
  for_each_part(a, b, begin, end, k, n, out, out_stride, accumulate, partial, parts,
                [&](const Side& x, const Side& y, int first, int last, const Target& to) {
                  matmul_tn_tile(x, y, first, last, to, shared);
                });
}
