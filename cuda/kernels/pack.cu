// Weights laid out for products, as they are stored there. blockIdx.y strides over pieces,
// blockIdx.x over tiles of 32 x 32 elements; a tile whose columns lie apart is read along its rows
// and turned in shared memory.
#include "rows.cuh"

namespace {

constexpr int kPackTile = 32;

}  // namespace

extern "C" __global__ __launch_bounds__(256, 4) void pack(const Piece* pieces, int count) {
  __shared__ real tile[kPackTile][kPackTile + 1];
  const int x = threadIdx.x % kPackTile, y = threadIdx.x / kPackTile;
  constexpr int step = kThreads / kPackTile;
  for (int p = blockIdx.y; p < count; p += gridDim.y) {
    const Piece piece = pieces[p];
    const bool turned = piece.col_stride != 1;
    Packed* to = static_cast<Packed*>(piece.to);
    const long long across = (piece.cols + kPackTile - 1) / kPackTile;
    const long long tiles = across * ((piece.rows + kPackTile - 1) / kPackTile);
    for (long long t = blockIdx.x; t < tiles; t += gridDim.x) {
      const long long i0 = t / across * kPackTile, j0 = t % across * kPackTile;
      if (turned) {
        for (int j = y; j < kPackTile; j += step) {
          if (i0 + x < piece.rows && j0 + j < piece.cols) {
            tile[j][x] = piece.from[(i0 + x) * piece.row_stride + (j0 + j) * piece.col_stride];
          }
        }
        __syncthreads();
      }
      for (int i = y; i < kPackTile; i += step) {
        if (i0 + i < piece.rows && j0 + x < piece.cols) {
          assign(to[(i0 + i) * piece.to_stride + j0 + x],
                 turned ? tile[x][i] : piece.from[(i0 + i) * piece.row_stride + j0 + x]);
        }
      }
      if (turned) __syncthreads();
    }
  }
}
