// Products with a packed weight. Rows of A are read in place if one source holds them whole;
// several sources or segment sums are first joined into contiguous scratch, a block of rows at a
// time. An element of C is the same sum in the same order for any number of rows.
#pragma once

#include "base/processors.h"
#include "kernels/isa_tile.h"
#include "kernels/isa_transpose.h"

namespace cavs::CAVS_ISA {
namespace {

// Maximum depth that a tile uses of a panel before C is written back. Smaller for a large weight,
// whose next rows come from a farther cache meanwhile.
constexpr int64_t kDepth = 1024, kDepthOfLarge = 384;

// Rows of A that stay in L2 while all panels pass, and the maximum number of tiles.
constexpr int64_t kMostTiles = 32;
template <class T>
CAVS_INLINE int64_t block_rows(int64_t k) {
  const int64_t fit = l2_bytes() / 2 / (static_cast<int64_t>(sizeof(T)) * larger(k, 1));
  return smaller(larger(fit / kTileRows, 1), kMostTiles) * kTileRows;
}

template <class T>
size_t packed_size(int64_t k, int64_t n) {
  return static_cast<size_t>(ceil_div(n, kPanel<T>) * kPanel<T> * k);
}

// Copy rows [0, rows) of contiguous columns, `stride` elements each, to lines of a panel.
template <class T>
CAVS_INLINE void pack_columns(const T* in, int64_t stride, int64_t rows, int64_t cols, T* out) {
  constexpr int64_t width = kPanel<T>, lanes = kLanes<T>;
  int64_t i = 0;
  for (; i + lanes <= rows; i += lanes) {
    int64_t c = 0;
    for (; c + lanes <= cols; c += lanes) {
      Vector<T> x[lanes];
      for (int64_t t = 0; t < lanes; ++t) x[t] = load(in + i + (c + t) * stride);
      transpose<T>(x);
      for (int64_t t = 0; t < lanes; ++t) store(out + (i + t) * width + c, x[t]);
    }
    for (; c < cols; ++c)
      for (int64_t t = i; t < i + lanes; ++t) out[t * width + c] = in[t + c * stride];
  }
  for (; i < rows; ++i)
    for (int64_t c = 0; c < cols; ++c) out[i * width + c] = in[i + c * stride];
}

// Copy rows [r0, r1) of a part, the columns in panel `p`.
template <class T>
CAVS_INLINE void pack_part(const WeightPart<T>& w, int64_t r0, int64_t r1, int64_t k, int64_t p,
                           T* packed) {
  constexpr int64_t width = kPanel<T>;
  const int64_t begin = larger(w.n0, p * width);
  const int64_t cols = smaller(w.n0 + w.cols, (p + 1) * width) - begin, rows = r1 - r0;
  if (cols <= 0) return;
  const T* in = w.data + r0 * w.row_stride + (begin - w.n0) * w.col_stride;
  T* out = packed + (p * k + w.k0 + r0) * width + (begin - p * width);
  if (w.col_stride == 1) {
    for (int64_t i = 0; i < rows; ++i) copy(out + i * width, in + i * w.row_stride, cols);
  } else if (w.row_stride == 1) {
    pack_columns(in, w.col_stride, rows, cols, out);
  } else {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t c = 0; c < cols; ++c)
        out[i * width + c] = in[i * w.row_stride + c * w.col_stride];
  }
}
template <class T>
void pack(const WeightPart<T>* parts, int32_t count, int64_t k, int64_t, int64_t p0, int64_t p1,
          T* packed) {
  // A few rows at a time if they are contiguous, so that they are read along.
  constexpr int64_t kFew = kLineBytes / static_cast<int64_t>(sizeof(T));
  for (int32_t i = 0; i < count; ++i) {
    const WeightPart<T>& w = parts[i];
    const int64_t each = w.col_stride == 1 ? kFew : larger(w.rows, 1);
    for (int64_t r = 0; r < w.rows; r += each)
      for (int64_t p = p0; p < p1; ++p) pack_part(w, r, smaller(w.rows, r + each), k, p, packed);
  }
}

// Scratch: a row of zeros, then the joined rows of a block.
template <class T>
size_t matmul_scratch(int64_t k) {
  return static_cast<size_t>((block_rows<T>(k) + 1) * k);
}

// Divide the rows of a block into tiles of nearly equal size.
template <class T>
struct Tiles {
  int64_t count;
  int64_t first[kMostTiles + 1];
  RowsOfA<T> of[kMostTiles];
};

// Rows [r, r + rows) of A; `joined` is their address if they were joined.
template <class T>
CAVS_INLINE void cut_into_tiles(const Source<T>* a, int64_t r, int64_t rows, int64_t k,
                                const T* joined, const T* zeros, Tiles<T>& tiles) {
  tiles.count = ceil_div(rows, kTileRows);
  tiles.first[0] = 0;
  for (int64_t t = 0; t < tiles.count; ++t) {
    const int64_t begin = tiles.first[t], end = rows * (t + 1) / tiles.count;
    tiles.first[t + 1] = end;
    for (int64_t i = 0; i < kTileRows; ++i) {
      const int64_t j = smaller(begin + i, end - 1);
      const T* row = joined != nullptr ? joined + j * k : plain_row(*a, r + j);
      tiles.of[t].row[i] = row != nullptr ? row : zeros;
    }
  }
}

template <class T>
void matmul(const Source<T>* a, int32_t num_sources, int64_t r0, int64_t r1, const T* packed,
            int64_t packed_k, int64_t k, int64_t n, int64_t p0, int64_t p1, T* c, int64_t c_stride,
            int64_t c_base, bool accumulate, T* scratch) {
  constexpr int64_t width = kPanel<T>;
  const bool in_place = num_sources == 1 && a->map != RowMap::kSegmentSum;
  T* zeros = scratch;
  T* joined = in_place ? nullptr : scratch + k;
  if (in_place && a->map == RowMap::kIndex) fill(zeros, T(0), k);
  const bool large = packed_k * n * static_cast<int64_t>(sizeof(T)) > l2_bytes() / 2;
  // Once even if k = 0: C must be written.
  const int64_t slices = larger(ceil_div(k, large ? kDepthOfLarge : kDepth), 1);
  const int64_t block = block_rows<T>(k);
  Tiles<T> tiles;
  for (int64_t b0 = r0; b0 < r1; b0 += block) {
    const int64_t rows = smaller(block, r1 - b0);
    if (!in_place)
      for (int64_t i = 0; i < rows; ++i) {
        if (i + 2 < rows) fetch_rows(a, num_sources, b0 + i + 2);
        join_row(a, num_sources, b0 + i, joined + i * k);
      }
    cut_into_tiles(a, b0, rows, k, joined, zeros, tiles);
    const int64_t most = tiles.count == 1 ? panels_together(rows) : 1;
    for (int64_t p = p0, together = 1; p < p1; p += together) {
      const int64_t last = n - (p + most - 1) * width;  // columns of the last of these panels
      together = p + most <= p1 && last > (kTileVectors - 1) * kLanes<T> ? most : 1;
      const int64_t cols = smaller(together * width, n - p * width);
      for (int64_t i = 0; i < slices; ++i) {
        const int64_t k0 = k * i / slices, depth = k * (i + 1) / slices - k0;
        const T* slice = packed + (p * packed_k + k0) * width;
        for (int64_t t = 0; t < tiles.count; ++t) {
          const int64_t t0 = tiles.first[t], some = tiles.first[t + 1] - t0;
          RowsOfA<T> of = tiles.of[t];
          for (const T*& row : of.row) row += k0;
          T* out = c + (b0 + t0 - c_base) * c_stride + p * width;
          if (together > 1) {
            run_together(some, of, depth, slice, packed_k * width, out, c_stride, cols,
                         accumulate || i > 0);
          } else if (large && tiles.count > 1) {
            // Each tile prefetches a part of the next slice, which follows this one.
            const int64_t step = ceil_div(2 * width * sizeof(T), tiles.count);
            const auto* next = reinterpret_cast<const char*>(slice + depth * width);
            run_tile(some, of, depth, slice, out, c_stride, cols, accumulate || i > 0,
                     Ahead{next + depth / 2 * t * step, step});
          } else {
            run_tile(some, of, depth, slice, out, c_stride, cols, accumulate || i > 0);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace cavs::CAVS_ISA
