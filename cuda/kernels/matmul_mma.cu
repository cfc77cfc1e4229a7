// The products of matmul.cu on tensor cores, with operands in tf32 or, with CAVS_HALF, in bfloat16
// and sums in float. matmul_*, matmul_tn_*: a block per tile of 64 x 64; a warp computes 32 x 32 of
// it over half of a slab's depth. matmul_*_16: a block per 16 rows x 64 columns, whose warps share
// the depth.
#include "mma.cuh"
#include "operands.cuh"

namespace {

constexpr int kDepth = 32;              // depth of a slab in words
constexpr int kPitch = kDepth + 4;      // pitch of A by rows, free of bank conflicts
constexpr int kDepthPitch = kTile + 8;  // pitch of B, and of A in matmul_tn, by depth
constexpr int kSideOfB = kDepth * kDepthPitch;
constexpr int kSideOfA = kTile * kPitch > kSideOfB ? kTile* kPitch : kSideOfB;
constexpr int kSlab = kSideOfA + kSideOfB;
constexpr int kParts = 2;  // parts of an operand's slab that a thread moves in turn

// A thread's part of an operand by words of the depth: four columns of each word.
template <class P>
struct Columns {
  Lanes<4> value[kParts][P::kValues];

  static __device__ int word(int part) { return threadIdx.x / 16 + part * (kDepth / kParts); }

  // four(k): four columns at depth k.
  template <class F>
  __device__ void fetch(F four) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int v = 0; v < P::kValues; ++v) value[part][v] = four(word(part) * P::kValues + v);
    }
  }

  __device__ void put(unsigned* side) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      Words<4> words;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        words.v[i] = P::word(value[part][0].v[i], value[part][P::kValues - 1].v[i]);
      }
      *reinterpret_cast<Words<4>*>(side + word(part) * kDepthPitch + threadIdx.x % 16 * 4) = words;
    }
  }
};

// The words of four consecutive values of the depth.
template <class P>
__device__ void put_row(unsigned* at, const Lanes<4>& x) {
  Words<4 / P::kValues> words;
#pragma unroll
  for (int i = 0; i < 4 / P::kValues; ++i) {
    words.v[i] = P::word(x.v[i * P::kValues], x.v[i * P::kValues + P::kValues - 1]);
  }
  *reinterpret_cast<Words<4 / P::kValues>*>(at) = words;
}

struct Position {  // a thread's position in a tile
  int group, row, column, g, t;

  __device__ Position()
      : group(threadIdx.x / 128),
        row(threadIdx.x / 64 % 2 * 32),
        column(threadIdx.x / 32 % 2 * 32),
        g(threadIdx.x % 32 / 4),
        t(threadIdx.x % 4) {}
};

// Add this group's half of the depth of a slab.
template <class P, bool Transposed>
__device__ void multiply(const unsigned* slab, float (&sum)[2][4][4]) {
  const Position at;
  const unsigned* side = slab + kSideOfA + at.column + at.g;
#pragma unroll
  for (int step = 0; step < kDepth / 16; ++step) {
    const int k = at.group * (kDepth / 2) + step * 8 + at.t;
    Words<4> x[2];
    Words<2> y[4];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = at.row + m * 16 + i % 2 * 8 + at.g, word = k + i / 2 * 4;
        x[m].v[i] = slab[Transposed ? word * kDepthPitch + row : row * kPitch + word];
      }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) y[n].v[i] = side[(k + i * 4) * kDepthPitch + n * 8];
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int n = 0; n < 4; ++n) P::multiply(sum[m][n], x[m], y[n]);
    }
  }
}

// Add the halves of the depth: group i gets the upper or the lower 16 rows of its threads.
__device__ void finish(const float (&sum)[2][4][4], float* shared, const Target& to) {
  const Position at;
  float* mine = shared + at.group * (kSlab / 2) + threadIdx.x % 128;
  float* others = shared + (1 - at.group) * (kSlab / 2) + threadIdx.x % 128;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    others[i * 128] = at.group == 0 ? sum[1][i / 4][i % 4] : sum[0][i / 4][i % 4];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 16; i += 2) {
    Lanes<2> x;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float own = at.group == 0 ? sum[0][i / 4][i % 4 + c] : sum[1][i / 4][i % 4 + c];
      x.v[c] = own + mine[(i + c) * 128];
    }
    const int row = at.row + at.group * 16 + at.g + i / 2 % 2 * 8;
    to.write(row, at.column + i / 4 * 8 + at.t * 2, x);
  }
  __syncthreads();  // `shared` is reused
}

template <class P>
__device__ void matmul_tile(const Sources& a, const Packed* w, int n, const Target& to,
                            unsigned* shared) {
  constexpr int values = kDepth * P::kValues, loads = values / 16;  // per slab; per thread
  const int column = to.n0 + threadIdx.x % 16 * 4;
  RowOfSources row(to, threadIdx.x / 4);
  const bool wide = aligned(w) && n % kWide == 0;
  Walk walk = {};
  Lanes<4> x[loads];
  Columns<P> y;
  float sum[2][4][4] = {};
  for_each_slab(
      walk.start(a), [&] { return walk.next(a, values); },
      [&] {
        y.fetch([&](int k) { return read_weights(a, walk, w, k, n, column, wide); });
#pragma unroll
        for (int i = 0; i < loads; ++i) x[i] = row.read(a, walk, (i * 4 + threadIdx.x % 4) * 4);
      },
      [&](int buffer) {
        unsigned* slab = shared + buffer * kSlab;
#pragma unroll
        for (int i = 0; i < loads; ++i) {
          const int word = (i * 4 + threadIdx.x % 4) * (4 / P::kValues);
          put_row<P>(slab + threadIdx.x / 4 * kPitch + word, x[i]);
        }
        y.put(slab + kSideOfA);
      },
      [&](int buffer) { multiply<P, false>(shared + buffer * kSlab, sum); });
  finish(sum, reinterpret_cast<float*>(shared), to);
}

template <class P>
__device__ void matmul_tn_tile(const Side& a, const Side& b, int first, int last, const Target& to,
                               unsigned* shared) {
  const int at = threadIdx.x % 16 * 4;
  int r = first;
  Columns<P> x, y;
  float sum[2][4][4] = {};
  for_each_slab(
      first < last, [&] { return (r += kDepth * P::kValues) < last; },
      [&] {
        x.fetch([&](int k) { return a.read(r + k, last, at); });
        y.fetch([&](int k) { return b.read(r + k, last, at); });
      },
      [&](int buffer) {
        x.put(shared + buffer * kSlab);
        y.put(shared + buffer * kSlab + kSideOfA);
      },
      [&](int buffer) { multiply<P, true>(shared + buffer * kSlab, sum); });
  finish(sum, reinterpret_cast<float*>(shared), to);
}

constexpr int kFewDepth = 128;             // depth of a slab of a small tile, 16 per warp
constexpr int kFewBlocks = kHalf ? 2 : 1;  // per multiprocessor, which bounds the registers

// Column g of the eight fragments of B is column 8 g + fragment of w, so that lanes read 32 bytes.
template <class P>
__device__ void matmul_few(const Sources& a, const Packed* w, int n, const Target& to, int part,
                           int parts, unsigned* shared) {
  constexpr int words = kFewDepth / P::kValues, share = words / (kThreads / 32), steps = share / 8;
  constexpr int pitch = words + 4;
  static_assert(2 * kFew * pitch <= kFewShared, "slabs lie where sums do later");
  const int first = threadIdx.x / 32 * share, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const int column = to.n0 + g * 8;
  RowOfSources row(to, threadIdx.x / 16);
  const bool wide = aligned(w) && n % kWide == 0;
  PartOfWalk walk = {};
  Lanes<4> x[2], y[2 * steps][P::kValues][2];
  Words<2> weights[steps][8];
  float sum[8][4] = {};
  for_each_slab(
      walk.start(a, kFewDepth, part, parts),
      [&] {
#pragma unroll
        for (int i = 0; i < steps * 16; ++i) {
          const int j = i % 8;
          const auto& of = y[i / 8];
          weights[i / 16][j].v[i / 8 % 2] =
              P::word(of[0][j / 4].v[j % 4], of[P::kValues - 1][j / 4].v[j % 4]);
        }
        return walk.next(a, kFewDepth);
      },
      [&] {
#pragma unroll
        for (int i = 0; i < 2 * steps; ++i) {
#pragma unroll
          for (int v = 0; v < P::kValues; ++v) {
            const int k = (first + i * 4 + t) * P::kValues + v;
            y[i][v][0] = read_weights(a, walk, w, k, n, column, wide);
            y[i][v][1] = read_weights(a, walk, w, k, n, column + 4, wide);
          }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) x[i] = row.read(a, walk, i * 64 + threadIdx.x % 16 * 4);
      },
      [&](int buffer) {
        unsigned* slab = shared + (buffer * kFew + threadIdx.x / 16) * pitch;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          put_row<P>(slab + (i * 64 + threadIdx.x % 16 * 4) / P::kValues, x[i]);
        }
      },
      [&](int buffer) {
#pragma unroll
        for (int step = 0; step < steps; ++step) {
          const unsigned* slab = shared + (buffer * kFew + g) * pitch + first + step * 8 + t;
          Words<4> z;
#pragma unroll
          for (int i = 0; i < 4; ++i) z.v[i] = slab[i % 2 * 8 * pitch + i / 2 * 4];
#pragma unroll
          for (int j = 0; j < 8; ++j) P::multiply(sum[j], z, weights[step][j]);
        }
      });
  real sums[kLaneSums];
#pragma unroll
  for (int i = 0; i < kLaneSums; ++i) sums[i] = sum[i / 4][i % 4];
  // Column 8 c + j is column c of fragment j, in the lanes with t = c / 2.
  const auto index = [](int i, int j) {
    return (j % 8 * 4 + i / 8 * 2 + j / 8 % 2) * 33 + i % 8 * 4 + j / 16;
  };
  add_warps(sums, reinterpret_cast<float*>(shared), index, to);
}

}  // namespace

#define CAVS_MATMUL(Precision, name)                                                             \
  extern "C" __global__ __launch_bounds__(256, 2) void matmul_##name(                            \
      Sources a, int begin, int end, const Packed* w, int k, int n, void* out, long long stride, \
      long long base, int half, int accumulate) {                                                \
    alignas(16) __shared__ unsigned shared[2 * kSlab];                                           \
    for_each_tile(begin, end, kTile, n, out, stride, base, half, accumulate,                     \
                  [&](const Target& to) { matmul_tile<Precision>(a, w, n, to, shared); });       \
  }                                                                                              \
  extern "C" __global__ __launch_bounds__(256, kFewBlocks) void matmul_##name##_16(              \
      Sources a, int begin, int end, const Packed* w, int k, int n, void* out, long long stride, \
      long long base, int half, int accumulate, real* partial, int parts, unsigned* arrived) {   \
    alignas(16) __shared__ unsigned shared[kFewShared];                                          \
    for_each_few(begin, end, n, out, stride, base, half, accumulate, partial, parts, arrived,    \
                 [&](const Target& to, int part) {                                               \
                   matmul_few<Precision>(a, w, n, to, part, parts, shared);                      \
                 });                                                                             \
  }                                                                                              \
  extern "C" __global__ __launch_bounds__(256, 2) void matmul_tn_##name(                         \
      Sources a, Sources b, int begin, int end, int k, int n, real* out, long long out_stride,   \
      int accumulate, real* partial, int parts) {                                                \
    alignas(16) __shared__ unsigned shared[2 * kSlab];                                           \
    for_each_part(a, b, begin, end, k, n, out, out_stride, accumulate, partial, parts,           \
                  [&](const Side& x, const Side& y, int first, int last, const Target& to) {     \
                    matmul_tn_tile<Precision>(x, y, first, last, to, shared);                    \
                  });                                                                            \
  }

#ifdef CAVS_HALF
CAVS_MATMUL(Bf16, bf16)
#else
CAVS_MATMUL(Tf32, tf32)
#endif
