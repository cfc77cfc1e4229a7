// Gradients of looked-up tables: up to a warp per slot, or a block for a slot with many rows. The
// order of additions depends on the slot alone.
#include "rows.cuh"

namespace {

constexpr int kManyRows = 64;  // rows from which the warps of a block share a slot
constexpr int kWarps = kThreads / 32;

// Add every `step`-th row, starting with j. rows[j] is the number of a row; with map 1 all are the
// same row. A negative number adds nothing.
template <int N>
__device__ void add_slot(const Rows& values, const int* rows, int j, int end, int step, int column,
                         Lanes<N>& sum) {
#pragma unroll 4
  for (; j < end; j += step) {
    const long long i = values.map == 1 ? values.base : rows[j];
    const bool none = values.map != 1 && rows[j] < 0;
    add(sum, load<N>(none ? Row{} : row_at(values, i), column, N, N > 1));
  }
}

template <int N>
__device__ void add_slots(const Rows& values, const int* offsets, const int* rows, const int* slots,
                          int count, real* out, int first) {
  const int vectors = values.width / N, lanes = lanes_of_row(vectors, 32);
  const int each = kThreads / lanes, lane = threadIdx.x % lanes;
  for (long long s0 = static_cast<long long>(blockIdx.x) * each; s0 < count;
       s0 += static_cast<long long>(gridDim.x) * each) {
    const long long s = s0 + threadIdx.x / lanes;
    if (s >= count) continue;
    const int begin = offsets[s], end = offsets[s + 1];
    if (end - begin >= kManyRows || (begin == end && !first)) continue;
    real* to = out + (slots != nullptr ? slots[s] : s) * values.width;
    for (int i = lane; i < vectors; i += lanes) {
      Lanes<N> sum = {};
      if (!first) sum = load<N>(to + i * N, N, N > 1);
      add_slot(values, rows, begin, end, 1, i * N, sum);
      store(to + i * N, sum);
    }
  }
}

template <int N>
__device__ void add_large_slots(const Rows& values, const int* offsets, const int* rows,
                                const int* slots, int count, real* out, int first) {
  __shared__ Lanes<N> of_warp[kWarps][32];
  const int vectors = values.width / N, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (long long s = blockIdx.x; s < count; s += gridDim.x) {
    const int begin = offsets[s], end = offsets[s + 1];
    if (end - begin < kManyRows) continue;
    real* to = out + (slots != nullptr ? slots[s] : s) * values.width;
    for (int i0 = 0; i0 < vectors; i0 += 32) {
      const int i = i0 + lane;
      Lanes<N> sum = {};
      if (i < vectors) add_slot(values, rows, begin + warp, end, kWarps, i * N, sum);
      of_warp[warp][lane] = sum;
      __syncthreads();
      if (warp == 0 && i < vectors) {
        for (int w = 1; w < kWarps; ++w) add(sum, of_warp[w][lane]);
        if (!first) add(sum, load<N>(to + i * N, N, N > 1));
        store(to + i * N, sum);
      }
      __syncthreads();
    }
  }
}

}  // namespace

extern "C" __global__ __launch_bounds__(256, 4) void lookup_grad(Rows values, const int* offsets,
                                                                 const int* rows, const int* slots,
                                                                 int count, real* out, int first) {
  if (aligned(values) && values.width % kWide == 0 && aligned(out)) {
    add_slots<kWide>(values, offsets, rows, slots, count, out, first);
    add_large_slots<kWide>(values, offsets, rows, slots, count, out, first);
  } else {
    add_slots<1>(values, offsets, rows, slots, count, out, first);
    add_large_slots<1>(values, offsets, rows, slots, count, out, first);
  }
}
