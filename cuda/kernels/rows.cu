// Kernels over whole rows. copy_rows, segment_max, segment_product: up to a warp per row;
// blockIdx.x strides over rows, blockIdx.y over the columns of wide rows. cross_entropy,
// cross_entropy_grad: a warp per row, or a block for a wide row. sum_rows: a block per 32 columns,
// whose 8 warps take rows in turn.
#include "rows.cuh"

namespace {

// Blocks per multiprocessor, which bounds the registers of copy_rows; loads in flight need most.
constexpr int kCopyBlocks = 4;
constexpr int kWideRow = 2048;   // columns from which a block computes the cross entropy of a row
constexpr int kFewClasses = 32;  // up to so many classes exponentials in double are cheap

// Call f(r, column, to) for all rows and every N-th column.
template <int N, class F>
__device__ void for_each_vector(int width, int begin, int end, void* out, long long stride,
                                long long base, bool half, F f) {
  const int vectors = width / N, lanes = lanes_of_row(vectors, 32);
  const int rows = kThreads / lanes, lane = threadIdx.x % lanes;
  const long long step = static_cast<long long>(gridDim.x) * rows;
  for (long long r = begin + static_cast<long long>(blockIdx.x) * rows + threadIdx.x / lanes;
       r < end; r += step) {
    for (int i = blockIdx.y * lanes + lane; i < vectors; i += gridDim.y * lanes) {
      store(out, (r - base) * stride + i * N, half, f(r, i * N));
    }
  }
}

__device__ bool wide_output(const Rows& in, const void* out, long long stride, bool half) {
  return aligned(in) && in.width % kWide == 0 && aligned(out, stride, half);
}

template <int N>
__device__ void copy(const Rows& in, int begin, int end, void* out, long long stride,
                     long long base, bool half) {
  for_each_vector<N>(in.width, begin, end, out, stride, base, half, [&](long long r, int column) {
    if (in.map != 3) return load<N>(plain_row(in, r), column, N, N > 1);
    Lanes<N> sum = {};
    add_rows<N, 4>(in, in.offsets[r], in.offsets[r + 1], column, N, N > 1, sum);
    return sum;
  });
}

// A maximum that propagates NaN.
__device__ real maximum(real a, real b) { return a > b || a != a ? a : b; }

// Rows folded by f(next, f of the rows before) over the segment of each, `none` if it is empty.
template <int N, class F>
__device__ void fold(const Rows& in, int begin, int end, void* out, long long stride,
                     long long base, bool half, real none, F f) {
  for_each_vector<N>(in.width, begin, end, out, stride, base, half, [&](long long r, int column) {
    Lanes<N> folded;
#pragma unroll
    for (int i = 0; i < N; ++i) folded.v[i] = none;
    bool empty = true;
    const long long last = in.offsets[r + 1];
    for (long long j = in.offsets[r]; j < last; ++j) {
      const Row row = segment_row(in, j);
      if (row.none()) continue;
      const Lanes<N> x = load<N>(row, column, N, N > 1);
#pragma unroll
      for (int i = 0; i < N; ++i) folded.v[i] = empty ? x.v[i] : f(x.v[i], folded.v[i]);
      empty = false;
    }
    return folded;
  });
}

template <class F>
__device__ void fold_segments(const Rows& in, int begin, int end, void* out, long long stride,
                              long long base, bool half, real none, F f) {
  if (wide_output(in, out, stride, half)) {
    fold<kWide>(in, begin, end, out, stride, base, half, none, f);
  } else {
    fold<1>(in, begin, end, out, stride, base, half, none, f);
  }
}

// Reduce values by f over the threads of a row, a warp or the block; all of them get the result.
template <bool Block, class V, class F>
__device__ V reduce(V x, F f) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = f(x, __shfl_xor_sync(kAllLanes, x, offset));
  if (!Block) return x;
  __shared__ V of_warp[kThreads / 32];
  __syncthreads();  // the previous result has been read
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
  __syncthreads();
  x = of_warp[0];
#pragma unroll
  for (int i = 1; i < kThreads / 32; ++i) x = f(x, of_warp[i]);
  return x;
}

// The factor of the gradient of row r.
__device__ real slope_of(const Rows& slope, long long r) {
  if (slope.data == nullptr) return 1;
  const Row row = plain_row(slope, r);
  return row.none() ? real(0) : row[0];
}

// Compute the loss of every row or, if grad is not null, gradient times slope. V: type of the
// exponentials, their sum and the values computed from them.
template <bool Block, class V = real>
__device__ void cross_entropy_of_rows(const Rows& logits, const Rows& slope, const int* label,
                                      int begin, int end, void* loss, void* grad, long long stride,
                                      long long base, bool half) {
  constexpr int threads = Block ? kThreads : 32, rows = kThreads / threads;
  const int lane = threadIdx.x % threads, n = logits.width;
  const long long step = static_cast<long long>(gridDim.x) * rows;
  for (long long r = begin + static_cast<long long>(blockIdx.x) * rows + threadIdx.x / threads;
       r < end; r += step) {
    const int y = label[r];
    const Row x = plain_row(logits, r);
    real top = 0;
    V sum = n;  // without logits the probabilities are uniform
    if (y >= 0 && !x.none()) {
      top = x[0];
      for (int i = lane; i < n; i += threads) top = maximum(x[i], top);
      top = reduce<Block>(top, maximum);
      sum = 0;
      for (int i = lane; i < n; i += threads) sum += exponential(V(x[i]) - top);
      sum = reduce<Block>(sum, [](V a, V b) { return a + b; });
    }
    if (grad == nullptr) {
      if (lane > 0) continue;
      const real truth = y >= n ? logarithm(real(-1)) : y >= 0 && !x.none() ? x[y] : real(0);
      const V value = y < 0 ? V(0) : logarithm(sum) + top - truth;
      store(loss, (r - base) * stride, half, Lanes<1>{static_cast<real>(value)});
      continue;
    }
    const V inverse = V(1) / sum, by = slope_of(slope, r);
    for (int i = lane; i < n; i += threads) {
      const V p = (!x.none() ? exponential(V(x[i]) - top) : V(1)) * inverse;
      const V value = (y < 0 ? V(0) : i == y ? p - V(1) : p) * by;
      store(grad, (r - base) * stride + i, half, Lanes<1>{static_cast<real>(value)});
    }
  }
}

__device__ real value_of(const Row& row, int column) { return !row.none() ? row[column] : real(0); }

// A compensated sum: it keeps the rounding errors of additions, for terms that nearly cancel. An
// addition does not wait for the error of the previous one.
struct Kept {
  real sum, lost;

  __device__ void add(real x) {
    const real next = sum + x, added = next - sum;
    lost += (sum - (next - added)) + (x - added);
    sum = next;
  }
  __device__ void add(const Kept& x) {
    add(x.sum);
    lost += x.lost;
  }
  // An infinite sum has no rounding error.
  __device__ real value() const { return lost - lost == 0 ? sum + lost : sum; }
};

// Sum value(j) over every eighth row. If no row is looked up, several loads are in flight.
template <class F>
__device__ Kept sum_every(long long j, long long last, F value) {
  Kept sum = {};
#pragma unroll 8
  for (; j < last; j += kThreads / 32) sum.add(value(j));
  return sum;
}

// Sum columns c0 to c0 + 31 over a part of the rows.
__device__ void sum_tile(const Rows& in, int begin, int end, int part, int parts, int c0, real* to,
                         bool accumulate, Kept (&sums)[kThreads / 32][32]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, c = c0 + lane;
  const bool segments = in.map == 3 && begin < end;
  const long long first = segments ? in.offsets[begin] : begin;
  const long long rows = (segments ? in.offsets[end] : end) - first;
  const long long last = first + rows * (part + 1) / parts;
  Kept sum = {};
  const long long j = first + rows * part / parts + warp;
  if (c < in.width) {
    if (segments) {
      sum = sum_every(j, last, [&](long long i) { return value_of(segment_row(in, i), c); });
    } else if (in.map == 0) {
      sum = sum_every(j, last, [&](long long i) { return row_at(in, i)[c]; });
    } else {
      sum = sum_every(j, last, [&](long long i) { return value_of(plain_row(in, i), c); });
    }
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp == 0 && c < in.width) {
#pragma unroll
    for (int i = 1; i < kThreads / 32; ++i) sum.add(sums[i][lane]);
    if (accumulate) sum.add(to[c]);
    to[c] = sum.value();
  }
  __syncthreads();
}

}  // namespace

// Copy sources into adjacent columns: blockIdx.z strides over sources.
extern "C" __global__ __launch_bounds__(256, kCopyBlocks) void copy_rows(
    const __grid_constant__ Sources in, int begin, int end, void* out, long long stride,
    long long base, int half) {
  int column = 0;
  for (int s = 0; s < in.count; column += in.of[s++].width) {
    if (s % gridDim.z != blockIdx.z) continue;
    void* to = kHalf && half ? static_cast<void*>(static_cast<bfloat16*>(out) + column)
                             : static_cast<real*>(out) + column;
    if (wide_output(in.of[s], to, stride, half)) {
      copy<kWide>(in.of[s], begin, end, to, stride, base, half);
    } else {
      copy<1>(in.of[s], begin, end, to, stride, base, half);
    }
  }
}

extern "C" __global__ __launch_bounds__(256, 4) void segment_max(Rows in, int begin, int end,
                                                                 void* out, long long stride,
                                                                 long long base, int half) {
  fold_segments(in, begin, end, out, stride, base, half, 0,
                [](real x, real best) { return maximum(x, best); });
}

extern "C" __global__ __launch_bounds__(256, 4) void segment_product(Rows in, int begin, int end,
                                                                     void* out, long long stride,
                                                                     long long base, int half) {
  fold_segments(in, begin, end, out, stride, base, half, 1,
                [](real x, real product) { return product * x; });
}

extern "C" __global__ __launch_bounds__(256, 4) void cross_entropy(Rows logits, const int* label,
                                                                   int begin, int end, void* loss,
                                                                   long long stride, long long base,
                                                                   int half) {
  if (logits.width <= kFewClasses) {
    cross_entropy_of_rows<false, double>(logits, {}, label, begin, end, loss, nullptr, stride, base,
                                         half);
  } else if (logits.width < kWideRow) {
    cross_entropy_of_rows<false>(logits, {}, label, begin, end, loss, nullptr, stride, base, half);
  } else {
    cross_entropy_of_rows<true>(logits, {}, label, begin, end, loss, nullptr, stride, base, half);
  }
}

extern "C" __global__ __launch_bounds__(256, 4) void cross_entropy_grad(Rows logits, Rows slope,
                                                                        const int* label, int begin,
                                                                        int end, void* grad,
                                                                        long long stride,
                                                                        long long base, int half) {
  if (logits.width <= kFewClasses) {
    cross_entropy_of_rows<false, double>(logits, slope, label, begin, end, nullptr, grad, stride,
                                         base, half);
  } else if (logits.width < kWideRow) {
    cross_entropy_of_rows<false>(logits, slope, label, begin, end, nullptr, grad, stride, base,
                                 half);
  } else {
    cross_entropy_of_rows<true>(logits, slope, label, begin, end, nullptr, grad, stride, base,
                                half);
  }
}

// Sum sources over the same rows into `partial`: for each part one sum after the other. Each row of
// a segment counts as one more row.
extern "C" __global__ __launch_bounds__(256, 4) void sum_rows(Sources in,
                                                              const __grid_constant__ Sums out,
                                                              int begin, int end, real* partial,
                                                              int parts) {
  __shared__ Kept sums[kThreads / 32][32];
  int total = 0;
  for (int s = 0; s < in.count; ++s) total += in.of[s].width;
  for (int part = blockIdx.y; part < parts; part += gridDim.y) {
    real* to = partial + static_cast<long long>(part) * total;
    unsigned tile = 0;
    for (int s = 0; s < in.count; to += in.of[s++].width) {
      for (int c0 = 0; c0 < in.of[s].width; c0 += 32, ++tile) {
        if (tile % gridDim.x != blockIdx.x) continue;
        const bool whole = parts == 1;
        sum_tile(in.of[s], begin, end, part, parts, c0, whole ? out.of[s].out : to,
                 whole && out.of[s].accumulate, sums);
      }
    }
  }
}

// A thread per element adds the parts of sum_rows, `total` columns wide together.
extern "C" __global__ __launch_bounds__(256, 4) void sum_parts_of_rows(
    const real* partial, int parts, int total, const __grid_constant__ Sums out) {
  for (int i = blockIdx.x * kThreads + threadIdx.x; i < total; i += gridDim.x * kThreads) {
    int s = 0, column = i;
    while (column >= out.of[s].width) column -= out.of[s++].width;
    real* to = out.of[s].out + column;
    Kept sum = {out.of[s].accumulate ? *to : real(0), 0};
#pragma unroll 8
    for (int part = 0; part < parts; ++part)
      sum.add(partial[static_cast<long long>(part) * total + i]);
    *to = sum.value();
  }
}

// A thread per element.
extern "C" __global__ __launch_bounds__(256, 4) void sum_parts(const real* partial, int parts,
                                                               long long n, real* out,
                                                               long long out_width,
                                                               long long out_stride,
                                                               int accumulate) {
  const long long step = static_cast<long long>(gridDim.x) * kThreads;
  for (long long i = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x; i < n;
       i += step) {
    real* const to = out + i / out_width * out_stride + i % out_width;
    real sum = accumulate ? *to : real(0);
#pragma unroll 4
    for (int part = 0; part < parts; ++part) sum += partial[part * n + i];
    *to = sum;
  }
}
