// Parameter gradients: out[K, N] (+)= sum over rows of A(r)^T B(r). A block of rows of A is
// interleaved into tiles of columns, of B into panels, both read in memory order; the register tile
// then runs over the rows of the block.
#pragma once

#include "kernels/isa_tile.h"

namespace cavs::CAVS_ISA {
namespace {

// Columns of B that are packed into panels at a time.
template <class T>
constexpr int64_t kMostColumns = larger(512 / kPanel<T>, 1) * kPanel<T>;

constexpr int64_t kMostRows = 448;  // per block

// With so few panels, copies of A take longer than they save.
constexpr int64_t kFewPanels = 3;

// Maximum number of rows of a block. Both copies of it should stay in cache; but each block also
// reads and writes `out` once, which costs more if that does not fit a cache itself. Depends on the
// whole shape only, so that threads that share it sum in the same order.
template <class T>
CAVS_INLINE int64_t row_block(int64_t k, int64_t n) {
  const int64_t size = sizeof(T);
  if (k * n * size > (2 << 20)) return kMostRows;
  return smaller(larger((512 << 10) / (size * (k + n + 1)), 64), 256);
}

// Scratch: the block's copies of A and B, and a row of each.
template <class T>
size_t matmul_tn_scratch(int64_t k, int64_t n) {
  const auto width = [](int64_t tiles, int64_t panels) {
    return round_up(tiles, kTileRows) + round_up(smaller(panels, kMostColumns<T>), kPanel<T>);
  };
  const int64_t most = n <= kNarrowResult ? larger(width(k, n), width(n, k)) : width(k, n);
  return static_cast<size_t>(row_block<T>(k, n) * most + larger(k, n));
}

// Copy all k columns of a block into tiles of kTileRows columns: element (r, i) of tile t is at
// out[(t * block.rows + r) * kTileRows + i]. Columns past k are zero.
template <Side side, class T>
void interleave(const Block<T>& block, int64_t k, T* out, T* row_buffer) {
  const int64_t tile_size = block.rows * kTileRows;
  block.for_each([&](const RowPairs<T>& part, int64_t r0, int64_t rows, int64_t at) {
    const Source<T>* a = sources_of<side>(part);
    const int32_t num_a = num_sources_of<side>(part);
    for (int64_t r = 0; r < rows; ++r) {
      if (r + 2 < rows) fetch_rows(a, num_a, r0 + r + 2);
      const T* row = num_a == 1 ? read_row(a[0], r0 + r, 0, k, row_buffer) : row_buffer;
      if (num_a != 1) join_row(a, num_a, r0 + r, row_buffer);
      if (row == nullptr) {
        fill(row_buffer, T(0), k);
        row = row_buffer;
      }
      T* to = out + (at + r) * kTileRows;
      int64_t i = 0;
      for (; i + kTileRows <= k; i += kTileRows, to += tile_size)
        __builtin_memcpy(to, row + i, kTileRows * sizeof(T));
      if (i < k)
        for (int64_t j = 0; j < kTileRows; ++j) to[j] = i + j < k ? row[i + j] : T(0);
    }
  });
}

// Copy columns [n0, n1) of a block: column n0 + p * kPanel + j of row r is at out[(p * block.rows +
// r) * kPanel + j]. Columns past n1 are zero: the tile reads whole vectors.
template <Side side, class T>
void cut_into_panels(const Block<T>& block, int64_t n0, int64_t n1, T* out, T* row_buffer) {
  constexpr int64_t width = kPanel<T>;
  block.for_each([&](const RowPairs<T>& part, int64_t r0, int64_t rows, int64_t at) {
    const Source<T>* b = sources_of<side>(part);
    const int32_t num_b = num_sources_of<side>(part);
    for (int64_t r = 0; r < rows; ++r) {
      const T* row = row_buffer;
      if (num_b == 1) {
        if (r + 2 < rows) fetch_row(b[0], r0 + r + 2, n0, n1 - n0);
        row = read_row(b[0], r0 + r, n0, n1 - n0, row_buffer);
        if (row == nullptr) fill(row_buffer, T(0), n1 - n0);
        if (row == nullptr) row = row_buffer;
      } else {
        int64_t start = 0;  // first column of source s in the joined row
        for (int32_t s = 0; s < num_b; ++s) {
          const int64_t from = larger(n0 - start, 0), to = smaller(n1 - start, b[s].width);
          if (from < to) copy_row(b[s], r0 + r, from, to - from, row_buffer + (start + from - n0));
          start += b[s].width;
        }
      }
      T* to = out + (at + r) * width;
      int64_t j = 0;
      for (; j + width <= n1 - n0; j += width, to += block.rows * width) {
#pragma GCC unroll 4
        for (int v = 0; v < kTileVectors; ++v)
          store(to + v * kLanes<T>, load(row + j + v * kLanes<T>));
      }
      if (const int64_t rest = n1 - n0 - j; rest > 0) {
        copy(to, row + j, rest);
        fill(to + rest, T(0), width - rest);
      }
    }
  });
}

// Pack columns [n0, n1) into panels, some at a time, and call f(panel, first column, columns) for
// each.
template <Side side, class T, class F>
CAVS_INLINE void for_each_panel(const Block<T>& block, int64_t n0, int64_t n1, T* panels,
                                T* row_buffer, F f) {
  for (int64_t first = n0; first < n1; first += kMostColumns<T>) {
    const int64_t end = smaller(first + kMostColumns<T>, n1);
    cut_into_panels<side>(block, first, end, panels, row_buffer);
    const T* panel = panels;
    for (int64_t column = first; column < end; column += kPanel<T>, panel += block.rows * kPanel<T>)
      f(panel, column, smaller(kPanel<T>, end - column));
  }
}

// out[K, n] (+)= A^T B of a block: B in tiles of columns, A in panels.
template <class T>
void add_narrow(const Block<T>& block, int64_t k, int64_t n, T* out, int64_t out_stride,
                bool accumulate, T* scratch, T* row_buffer) {
  T* tiles = scratch;
  T* panels = tiles + block.rows * round_up(n, kTileRows);
  interleave<Side::kRight>(block, n, tiles, row_buffer);
  const auto add = [&](const T* panel, int64_t column, int64_t cols) {
    for (int64_t j = 0; j < n; j += kTileRows) {
      const int64_t some = smaller(kTileRows, n - j);
      T turned[kTileRows * kPanel<T>];
      run_tile(some, ColumnsOfA<T>{tiles + j * block.rows, kTileRows}, block.rows, panel, turned,
               kPanel<T>, cols, false);
      for (int64_t x = 0; x < cols; ++x) {
        T* to = out + (column + x) * out_stride + j;
        for (int64_t y = 0; y < some; ++y)
          to[y] = accumulate ? to[y] + turned[y * kPanel<T> + x] : turned[y * kPanel<T> + x];
      }
    }
  };
  for_each_panel<Side::kLeft>(block, 0, k, panels, row_buffer, add);
}

// True if rows of A can be read in place.
template <class T>
bool stored_in_rows(const RowPairs<T>* parts, int32_t count) {
  for (int32_t i = 0; i < count; ++i)
    if (parts[i].num_a != 1 || parts[i].a->map == RowMap::kSegmentSum) return false;
  return true;
}

template <class T>
void matmul_tn(const RowPairs<T>* parts, int32_t count, int64_t k, int64_t whole_k, int64_t n,
               int64_t n0, int64_t n1, T* out, int64_t out_stride, bool accumulate, T* scratch) {
  const int64_t most = row_block<T>(whole_k, n), all = rows_of(parts, count);
  T* row_buffer = scratch + matmul_tn_scratch<T>(whole_k, n) - larger(whole_k, n);
  T* panels = scratch;
  T* tiles = panels + most * round_up(smaller(n, kMostColumns<T>), kPanel<T>);
  const bool narrow = n <= kNarrowResult && n < k && n1 - n0 == n;
  const bool in_place = n1 - n0 <= kFewPanels * kPanel<T> && stored_in_rows(parts, count);
  const T* rows_of_a[kMostRows];
  if (in_place) fill(tiles, T(0), k);                     // read in place of missing rows
  const int64_t blocks = larger(ceil_div(all, most), 1);  // even without rows, out is written
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t begin = all * i / blocks;
    const Block<T> block{parts, count, begin, all * (i + 1) / blocks - begin};
    const bool more = accumulate || i > 0;
    if (narrow) {
      add_narrow(block, k, n, out, out_stride, more, scratch, row_buffer);
      continue;
    }
    if (in_place) {
      block.for_each([&](const RowPairs<T>& part, int64_t r0, int64_t rows, int64_t at) {
        for (int64_t r = 0; r < rows; ++r) {
          const T* row = plain_row(*part.a, r0 + r);
          rows_of_a[at + r] = row != nullptr ? row : tiles;
        }
      });
    } else {
      interleave<Side::kLeft>(block, k, tiles, row_buffer);
    }
    const auto add = [&](const T* panel, int64_t column, int64_t cols) {
      for (int64_t j = 0; j < k; j += kTileRows) {
        const int64_t some = smaller(kTileRows, k - j);
        T* to = out + j * out_stride + column;
        if (in_place) {
          run_tile(some, ColumnsOfRows<T>{rows_of_a, j}, block.rows, panel, to, out_stride, cols,
                   more);
        } else {
          run_tile(some, ColumnsOfA<T>{tiles + j * block.rows, kTileRows}, block.rows, panel, to,
                   out_stride, cols, more);
        }
      }
    };
    for_each_panel<Side::kRight>(block, n0, n1, panels, row_buffer, add);
  }
}

}  // namespace
}  // namespace cavs::CAVS_ISA
