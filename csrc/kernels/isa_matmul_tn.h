// Parameter gradients: out[K, N] (+)= sum over rows of A(r)^T B(r). A block of rows of A is
// interleaved into tiles of columns, of B into one panel at a time; the register tile then runs
// over the rows of the block.
#pragma once

#include "kernels/isa_tile.h"

namespace cavs::CAVS_ISA {
namespace {

constexpr int64_t kRowBlock = 256;

// Scratch: A's block, one panel of B's block, a joined row of each.
template <class T>
size_t matmul_tn_scratch(int64_t k, int64_t n) {
  return static_cast<size_t>(kRowBlock * (round_up(k, kTileRows) + kPanel<T>)+k + n);
}

// Rows [r0, r0 + rows) of A, in tiles of kTileRows columns: element (r, i) of tile t at
// out[(t * rows + r) * kTileRows + i]. Columns past k are zero.
template <class T>
void interleave(const Source<T>* a, int32_t num_a, int64_t r0, int64_t rows, int64_t k, T* out,
                T* row_buffer) {
  const int64_t tile_size = rows * kTileRows;
  for (int64_t r = 0; r < rows; ++r) {
    const T* row = num_a == 1 ? read_row(a[0], r0 + r, 0, k, row_buffer) : row_buffer;
    if (num_a != 1) join_row(a, num_a, r0 + r, row_buffer);
    if (row == nullptr) {
      fill(row_buffer, T(0), k);
      row = row_buffer;
    }
    T* to = out + r * kTileRows;
    int64_t i = 0;
    for (; i + kTileRows <= k; i += kTileRows, to += tile_size)
      __builtin_memcpy(to, row + i, kTileRows * sizeof(T));
    if (i < k)
      for (int64_t j = 0; j < kTileRows; ++j) to[j] = i + j < k ? row[i + j] : T(0);
  }
}

// Columns [first, first + cols) of rows [r0, r0 + rows) of B, kPanel to a row.
template <class T>
void gather_panel(const Source<T>* b, int32_t num_b, int64_t r0, int64_t rows, int64_t first,
                  int64_t cols, T* out) {
  for (int64_t r = 0; r < rows; ++r, out += kPanel<T>) {
    int64_t start = 0;  // of source s in the joined row
    for (int32_t s = 0; s < num_b; ++s) {
      const int64_t from = larger(first - start, 0);
      const int64_t to = smaller(first + cols - start, b[s].width);
      if (from < to) copy_row(b[s], r0 + r, from, to - from, out + (start + from - first));
      start += b[s].width;
    }
    // The tile reads whole vectors; what it computes from the padding is never stored, but
    // garbage could be slow (denormals) or trap.
    if (cols < kPanel<T>) fill(out + cols, T(0), kPanel<T> - cols);
  }
}

template <class T>
void matmul_tn(const Source<T>* a, int32_t num_a, const Source<T>* b, int32_t num_b, int64_t r0,
               int64_t r1, int64_t k, int64_t, int64_t n0, int64_t n1, T* out, int64_t out_stride,
               bool accumulate, T* scratch) {
  T* panel = scratch;
  T* tiles = panel + kRowBlock * kPanel<T>;
  T* row_buffer = tiles + kRowBlock * round_up(k, kTileRows);
  int64_t b0 = r0;
  do {  // once without rows too: out must be written
    const int64_t rows = smaller(kRowBlock, r1 - b0);
    interleave(a, num_a, b0, rows, k, tiles, row_buffer);
    for (int64_t column = n0; column < n1; column += kPanel<T>) {
      const int64_t cols = smaller(kPanel<T>, n1 - column);
      gather_panel(b, num_b, b0, rows, column, cols, panel);
      for (int64_t i = 0; i < k; i += kTileRows) {
        const ColumnsOfA<T> of{tiles + i * rows, kTileRows};
        run_tile(smaller(kTileRows, k - i), of, rows, panel, out + i * out_stride + column,
                 out_stride, cols, accumulate || b0 > r0);
      }
    }
    b0 += kRowBlock;
  } while (b0 < r1);
}

}  // namespace
}  // namespace cavs::CAVS_ISA
