// The two products of the kernel table by strips of bfloat16: a packed weight is the right strips
// of its columns, rows of A are split into left strips, a block at a time.
#pragma once

#include "base/processors.h"
#ifdef CAVS_MATRIX_UNIT
#include "kernels/isa_matrix_unit.h"
#else
#include "kernels/isa_pairs.h"
#endif

namespace cavs::CAVS_ISA {
namespace {

size_t strips_size(int64_t k, int64_t n) {
  return static_cast<size_t>(ceil_div(n, kStrip) * units_of(k) * kUnitBytes / 4);
}

// A piece of a weight: element (i, j) at data[i * row_stride + j * col_stride].
struct Piece {
  const float* data;
  int64_t row_stride, col_stride, rows, cols;

  // n <= 16 elements from `first` on of `count`, `stride` apart; zeros outside.
  static CAVS_INLINE Line line(const float* p, int64_t stride, int64_t first, int64_t n,
                               int64_t count) {
    if (first >= 0 && stride == 1) return load_up_to(p + first, smaller(n, count - first));
    Line v{};
    for (int64_t t = larger(-first, 0); t < n && first + t < count; ++t)
      v[t] = p[(first + t) * stride];
    return v;
  }
  // Rows [i, i + n) of column or [j, j + n) of row `at`; zeros outside.
  CAVS_INLINE Line of_column(int64_t at, int64_t i, int64_t n) const {
    if (at < 0 || at >= cols) return Line{};
    return line(data + at * col_stride, row_stride, i, n, rows);
  }
  CAVS_INLINE Line of_row(int64_t at, int64_t j) const {
    if (at < 0 || at >= rows) return Line{};
    return line(data + at * row_stride, 1, j, kLines, cols);
  }
  // Rows [i, i + 2 * pairs) of columns [j, j + 16) to a right tile, and what is left of them behind
  // it; what is not of the piece stays. Rows whose elements lie together are read by row.
  void place(int64_t i, int64_t j, int64_t pairs, char* tile) const {
    Tile made;
    if (col_stride == 1) {
      for (int64_t t = 0; t < kLines; ++t)
        made.put(t, t < pairs ? of_row(i + t, j) : Line{},
                 t < pairs ? of_row(i + pairs + t, j) : Line{});
    } else {
      for (int64_t t = 0; t < kLines; ++t)
        made.put(t, of_column(j + t, i, pairs), of_column(j + t, i + pairs, pairs));
      made.exchange();
    }
    if (i >= 0 && i + 2 * pairs <= rows && j >= 0 && j + kLines <= cols) return made.store(tile);
    const auto column = iota<float>() + static_cast<int32_t>(j);
    const Bits columns = (Bits)(column >= 0 && column < static_cast<int32_t>(cols));
    const auto ours = [&](int64_t row) { return row >= 0 && row < rows; };
    Bits masks[kLines];
    for (int64_t t = 0; t < kLines; ++t)
      masks[t] = columns & ((t < pairs && ours(i + t) ? 0xffffu : 0u) |
                            (t < pairs && ours(i + pairs + t) ? 0xffff0000u : 0u));
    made.merge(tile, masks);
  }
};

// Places a piece of a weight at (k0, n0); see Kernels::pack.
void pack_strips(const float* w, int64_t row_stride, int64_t col_stride, int64_t rows, int64_t cols,
                 int64_t k0, int64_t n0, int64_t k, int64_t, float* packed) {
  const Piece piece{w, row_stride, col_stride, rows, cols};
  const int64_t end = n0 + cols;
  for (int64_t strip = n0 / kStrip; strip * kStrip < end; ++strip)
    for (int64_t unit = k0 / kDepthUnit; unit * kDepthUnit < k0 + rows; ++unit)
      for (int64_t half = 0; half < 2; ++half) {
        const int64_t column = strip * kStrip + half * kLines;
        if (column >= end || column + kLines <= n0) continue;
        char* units = reinterpret_cast<char*>(packed) + (strip * units_of(k) + unit) * kUnitBytes;
        const int64_t row = unit * kDepthUnit;
        piece.place(row - k0, column - n0, pairs_of(k - row), units + half * kSecond);
      }
}

// Columns [begin, end) of row r of sources side by side: where they are all there is to read,
// there, else in `buffer`; null for zeros.
CAVS_INLINE const float* read_columns(const Source<float>* s, int32_t count, int64_t r,
                                      int64_t begin, int64_t end, float* buffer) {
  if (count == 1) return read_row(*s, r, begin, end - begin, buffer);
  int64_t start = 0;  // of source i in the joined row
  for (int32_t i = 0; i < count; ++i) {
    const int64_t from = larger(begin - start, 0), to = smaller(end - start, s[i].width);
    if (from < to) copy_row(s[i], r, from, to - from, buffer + (start + from - begin));
    start += s[i].width;
  }
  return buffer;
}

// Rows [r0, r0 + rows) of sources side by side, k wide, as left strips. Some units of a row are
// read at once: few enough that what is written stays in L1, enough that processors foresee what is
// read.
constexpr int64_t kUnitsAtOnce = 8;
void split_rows(const Source<float>* s, int32_t count, int64_t r0, int64_t rows, int64_t k,
                char* strips) {
  const int64_t units = units_of(k);
  const bool in_place = count == 1 && s->map != RowMap::kSegmentSum;
  for (int64_t first = 0; first < rows; first += kStrip, strips += units * kUnitBytes) {
    const int64_t high = smaller(kStrip, rows - first);
    const float* row[kStrip + 1];
    if (in_place)
      for (int64_t t = 0; t < high; ++t) row[t] = plain_row(*s, r0 + first + t);
    row[high] = nullptr;
    for (int64_t u0 = 0; u0 < units; u0 += kUnitsAtOnce) {
      const int64_t u1 = smaller(u0 + kUnitsAtOnce, units), begin = u0 * kDepthUnit;
      for (int64_t t = 0; t < high; ++t) {
        alignas(64) float buffer[kUnitsAtOnce * kDepthUnit];
        const float* from = in_place && row[t] != nullptr ? row[t] + begin : nullptr;
        const float* next = in_place && row[t + 1] != nullptr ? row[t + 1] + begin : nullptr;
        if (!in_place)
          from = read_columns(s, count, r0 + first + t, begin, smaller(u1 * kDepthUnit, k), buffer);
        char* out = strips + u0 * kUnitBytes + t * kLineBytes;
        if (t >= kLines) out += kSecond - kTileBytes;
        for (int64_t unit = u0; unit < u1; ++unit, out += kUnitBytes) {
          const int64_t wide = smaller(kDepthUnit, k - unit * kDepthUnit), pairs = pairs_of(wide);
          if (next != nullptr) {
            __builtin_prefetch(next);
            __builtin_prefetch(next + kLines);
            next += kDepthUnit;
          }
          if (from == nullptr) {
            put_line(Line{}, Line{}, out);
            continue;
          }
          if (wide == kDepthUnit)
            put_line(load(from), load(from + kLines), out);
          else
            put_line(load_up_to(from, pairs), load_up_to(from + pairs, wide - pairs), out);
          from += kDepthUnit;
        }
      }
    }
  }
}

// Rows of A that are split at once: they stay in L2 while all strips of the weight pass.
CAVS_INLINE int64_t rows_at_once(int64_t k) {
  const int64_t fit = l2_bytes() / 2 / (larger(units_of(k), 1) * kUnitBytes);
  return smaller(larger(fit, 1), 8) * kStrip;
}

// Scratch: the strips of a block.
size_t multiply_scratch(int64_t k) {
  const int64_t strips = rows_at_once(k) / kStrip * units_of(k) * kUnitBytes / 4;
  return static_cast<size_t>(kLines + strips);
}

void multiply(const Source<float>* a, int32_t num_sources, int64_t r0, int64_t r1,
              const float* packed, int64_t packed_k, int64_t k, int64_t n, int64_t p0, int64_t p1,
              float* c, int64_t c_stride, int64_t c_base, bool accumulate, float* scratch) {
  const int64_t units = units_of(k), left_bytes = units * kUnitBytes;
  const int64_t right_bytes = units_of(packed_k) * kUnitBytes;
  char* left = aligned(scratch);
  const int64_t most = rows_at_once(k), blocks = ceil_div(r1 - r0, most);
  const int64_t share = blocks > 0 ? round_up(ceil_div(r1 - r0, blocks), kStrip) : 0;
  Unit unit;
  for (int64_t b0 = r0; b0 < r1; b0 += share) {
    const int64_t rows = smaller(share, r1 - b0);
    split_rows(a, num_sources, b0, rows, k, left);
    float* out = c + (b0 - c_base) * c_stride;
    const int64_t most_beside = strips_beside(rows);
    for (int64_t p = p0, beside = 1; p < p1; p += beside) {
      const char* right = reinterpret_cast<const char*>(packed) + p * right_bytes;
      const int64_t j = p * kStrip, all = j + most_beside * kStrip;
      beside = most_beside > 1 && p + most_beside <= p1 && all <= n ? most_beside : 1;
      if (beside > 1)
        multiply_beside(unit, left, right, right_bytes, k,
                        {out + j, c_stride, rows, beside * kStrip, accumulate});
      else
        for (int64_t i = 0; i < rows; i += kStrip)
          multiply_strips(unit, left + i / kStrip * left_bytes, right, k,
                          {out + i * c_stride + j, c_stride, smaller(kStrip, rows - i),
                           smaller(kStrip, n - j), accumulate});
    }
  }
}

// Rows of A and B that are split at once, and columns of B.
CAVS_INLINE int64_t rows_of_gradient(int64_t k, int64_t n) {
  return k * n * 4 > (2 << 20) ? kRowsOfLarge : 256;
}
constexpr int64_t kColumnsAtOnce = 512;

size_t multiply_tn_scratch(int64_t k, int64_t n) {
  const int64_t columns = smaller(n, kColumnsAtOnce);
  const int64_t strips = ceil_div(k, kStrip) + ceil_div(columns, kStrip);
  return static_cast<size_t>(2 * kLines + (kDepthUnit + 1) * round_up(larger(k, columns), kLines) +
                             strips * units_of(rows_of_gradient(k, n)) * kUnitBytes / 4);
}

// Rows [r0, r0 + rows) of A^T as left, or of B as right strips of `columns` columns. `buffer` takes
// a unit of rows and one of zeros.
template <bool Left>
void split_columns(const Source<float>* s, int32_t count, int64_t r0, int64_t rows, int64_t begin,
                   int64_t columns, char* strips, float* buffer) {
  const int64_t strip_bytes = units_of(rows) * kUnitBytes, stride = round_up(columns, kLines);
  const float* zeros = buffer + kDepthUnit * stride;
  fill(buffer + kDepthUnit * stride, 0.0f, columns);
  for (int64_t first = 0; first < rows; first += kDepthUnit, strips += kUnitBytes) {
    const int64_t pairs = pairs_of(rows - first);
    const float *x[kLines], *y[kLines];  // rows of the pairs of a line
    const auto find = [&](int64_t t) {
      if (first + t >= rows) return zeros;
      const float* row =
          read_columns(s, count, r0 + first + t, begin, begin + columns, buffer + t * stride);
      return row != nullptr ? row : zeros;
    };
    for (int64_t t = 0; t < kLines; ++t) {
      x[t] = t < pairs ? find(t) : zeros;
      y[t] = t < pairs ? find(pairs + t) : zeros;
    }
    for (int64_t j = 0; j < columns; j += kLines) {
      Tile tile;
      if (j + kLines <= columns)
        for (int64_t t = 0; t < kLines; ++t) tile.put(t, load(x[t] + j), load(y[t] + j));
      else
        for (int64_t t = 0; t < kLines; ++t)
          tile.put(t, load_up_to(x[t] + j, columns - j), load_up_to(y[t] + j, columns - j));
      if constexpr (Left) tile.exchange();
      tile.store(strips + j / kStrip * strip_bytes + j / kLines % 2 * kSecond);
    }
  }
}

void multiply_tn(const Source<float>* a, int32_t num_a, const Source<float>* b, int32_t num_b,
                 int64_t r0, int64_t r1, int64_t k, int64_t whole_k, int64_t n, int64_t n0,
                 int64_t n1, float* out, int64_t out_stride, bool accumulate, float* scratch) {
  const int64_t most = rows_of_gradient(whole_k, n), columns = smaller(n, kColumnsAtOnce);
  auto* buffer = reinterpret_cast<float*>(aligned(scratch));
  char* left = aligned(buffer + (kDepthUnit + 1) * round_up(larger(k, columns), kLines));
  char* right = left + ceil_div(k, kStrip) * units_of(most) * kUnitBytes;
  Unit unit;
  const int64_t blocks = larger(ceil_div(r1 - r0, most), 1);  // without rows, too: out is written
  const int64_t share = round_up(ceil_div(r1 - r0, blocks), kDepthUnit);
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t b0 = smaller(r0 + block * share, r1), rows = smaller(share, r1 - b0);
    const int64_t strip_bytes = units_of(rows) * kUnitBytes;
    split_columns<true>(a, num_a, b0, rows, 0, k, left, buffer);
    for (int64_t first = n0; first < n1; first += kColumnsAtOnce) {
      const int64_t width = smaller(kColumnsAtOnce, n1 - first);
      split_columns<false>(b, num_b, b0, rows, first, width, right, buffer);
      for (int64_t i = 0; i < k; i += kStrip) {
        for (int64_t j = 0; j < width; j += kStrip) {
          multiply_strips(unit, left + i / kStrip * strip_bytes, right + j / kStrip * strip_bytes,
                          rows,
                          {out + i * out_stride + first + j, out_stride, smaller(kStrip, k - i),
                           smaller(kStrip, width - j), accumulate || block > 0});
        }
      }
    }
  }
}

}  // namespace
}  // namespace cavs::CAVS_ISA
