// Packing of weights for products, and unpacking of gradients from the layout of a library.
// blockIdx.y strides over pieces, blockIdx.x over tiles of 32 x 32 elements. A tile whose columns
// are not contiguous is read along its rows and transposed in shared memory.
#include "rows.cuh"

namespace {

constexpr int kPackTile = 32;

// Call put(i, j, x) for each element (i, j) of the piece.
template <class Put>
__device__ void each_element(const Piece& piece, real (&tile)[kPackTile][kPackTile + 1], Put put) {
  const int x = threadIdx.x % kPackTile, y = threadIdx.x / kPackTile;
  constexpr int step = kThreads / kPackTile;
  const bool transposed = piece.col_stride != 1;
  const long long across = (piece.cols + kPackTile - 1) / kPackTile;
  const long long tiles = across * ((piece.rows + kPackTile - 1) / kPackTile);
  for (long long t = blockIdx.x; t < tiles; t += gridDim.x) {
    const long long i0 = t / across * kPackTile, j0 = t % across * kPackTile;
    if (transposed) {
      for (int j = y; j < kPackTile; j += step) {
        if (i0 + x < piece.rows && j0 + j < piece.cols) {
          tile[j][x] = piece.from[(i0 + x) * piece.row_stride + (j0 + j) * piece.col_stride];
        }
      }
      __syncthreads();
    }
    for (int i = y; i < kPackTile; i += step) {
      if (i0 + i < piece.rows && j0 + x < piece.cols) {
        put(i0 + i, j0 + x,
            transposed ? tile[x][i] : piece.from[(i0 + i) * piece.row_stride + j0 + x]);
      }
    }
    if (transposed) __syncthreads();
  }
}

}  // namespace

extern "C" __global__ __launch_bounds__(256, 4) void pack(const Piece* pieces, int count) {
  __shared__ real tile[kPackTile][kPackTile + 1];
  for (int p = blockIdx.y; p < count; p += gridDim.y) {
    const Piece piece = pieces[p];
    Packed* to = static_cast<Packed*>(piece.to);
    each_element(piece, tile,
                 [&](long long i, long long j, real x) { assign(to[i * piece.to_stride + j], x); });
  }
}

// Add each piece to the array that it was packed from: `to` is of real, whatever the type of packed
// weights. Pieces do not overlap.
extern "C" __global__ __launch_bounds__(256, 4) void unpack(const Piece* pieces, int count) {
  __shared__ real tile[kPackTile][kPackTile + 1];
  for (int p = blockIdx.y; p < count; p += gridDim.y) {
    const Piece piece = pieces[p];
    real* to = static_cast<real*>(piece.to);
    each_element(piece, tile,
                 [&](long long i, long long j, real x) { to[i * piece.to_stride + j] += x; });
  }
}
