// What products by strips multiply: a packed weight is the right strips of its columns, rows are
// rounded to left strips, and columns of rows to either.
#pragma once

#ifdef CAVS_MATRIX_UNIT
#include "kernels/isa_matrix_unit.h"
#else
#include "kernels/isa_pairs.h"
#endif

namespace cavs::CAVS_ISA {
namespace {

// n <= 16 elements from `first` on of `count`, `stride` apart; zeros outside.
CAVS_INLINE Line line_within(const float* p, int64_t stride, int64_t first, int64_t n,
                             int64_t count) {
  const int64_t begin = larger(-first, 0), end = smaller(n, count - first);
  if (begin >= end) return Line{};
  if (stride == 1) {
    const auto lanes = (1u << end) - (1u << begin);
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>(lanes), p + first);
  }
  Line v{};
  for (int64_t t = begin; t < end; ++t) v[t] = p[(first + t) * stride];
  return v;
}

// Adds what a part of a weight has of a right tile: columns [j, j + 16) of its rows
// [i, i + 2 * pairs), or the same with each column a line. Outside of it, it has zeros.
template <bool ByColumn>
CAVS_INLINE void collect(const WeightPart<float>& w, int64_t i, int64_t j, int64_t pairs,
                         Tile& tile) {
  // The next unit's come from a farther cache meanwhile: rows of many widths share few sets of L1.
  const auto row = [&](int64_t at) {
    if (at < 0 || at >= w.rows) return Line{};
    const float* from = w.data + at * w.row_stride;
    __builtin_prefetch(from + kDepthUnit * w.row_stride + j, 0, 2);
    return line_within(from, w.col_stride, j, kLines, w.cols);
  };
  const auto column = [&](int64_t at, int64_t first) {
    if (at < 0 || at >= w.cols) return Line{};
    const float* from = w.data + at * w.col_stride;
    __builtin_prefetch(from + kDepthUnit * w.row_stride + first, 0, 2);
    return line_within(from, w.row_stride, first, pairs, w.rows);
  };
  for (int64_t t = 0; t < (ByColumn ? kLines : pairs); ++t) {
    tile.x[t] += ByColumn ? column(j + t, i) : row(i + t);
    tile.y[t] += ByColumn ? column(j + t, i + pairs) : row(i + pairs + t);
  }
}

// See Kernels::pack. Parts are read along their columns if these lie together in all, else by row.
template <bool ByColumn>
void pack_parts(const WeightPart<float>* parts, int32_t count, int64_t k, int64_t n, int64_t p0,
                int64_t p1, char* packed) {
  for (int64_t strip = p0; strip < p1; ++strip) {
    for (int64_t row = 0; row < k; row += kDepthUnit) {
      char* unit = packed + (strip * units_of(k) + row / kDepthUnit) * kUnitBytes;
      const int64_t pairs = pairs_of(k - row), end = row + 2 * pairs;
      for (int64_t half = 0; half < 2; ++half) {
        const int64_t column = strip * kStrip + half * kLines;
        if (column >= n) break;
        for (int64_t t = 0; t <= kLines; ++t)
          __builtin_prefetch(unit + kUnitBytes + (half * (kLines + 1) + t) * kLineBytes, 1);
        // What is written next is asked for: few writes wait at once.
        for (int64_t t = half * kUnitBytes / 2; t < (half + 1) * kUnitBytes / 2; t += kLineBytes)
          __builtin_prefetch(unit + kUnitBytes + t, 1);
        Tile tile{};
        for (int32_t i = 0; i < count; ++i) {
          const WeightPart<float>& w = parts[i];
          if (w.k0 < end && row < w.k0 + w.rows && w.n0 < column + kLines && column < w.n0 + w.cols)
            collect<ByColumn>(w, row - w.k0, column - w.n0, pairs, tile);
        }
        put_right<ByColumn>(tile, unit, half);
      }
    }
  }
}
void pack_strips(const WeightPart<float>* parts, int32_t count, int64_t k, int64_t n, int64_t p0,
                 int64_t p1, float* packed) {
  bool by_row = true;
  for (int32_t i = 0; i < count; ++i) by_row = by_row && parts[i].col_stride == 1;
  const auto pack = by_row ? pack_parts<false> : pack_parts<true>;
  pack(parts, count, k, n, p0, p1, reinterpret_cast<char*>(packed));
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

// use(t, unit, x, y) for row r0 + t of sources side by side, k wide, and each unit of it. Some
// units of a row are read at once: few enough that what is written stays in L1, enough that
// processors foresee what is read.
constexpr int64_t kUnitsAtOnce = 8;
template <class Use>
CAVS_INLINE void for_each_line(const Source<float>* s, int32_t count, int64_t r0, int64_t rows,
                               int64_t k, Use use) {
  const int64_t units = units_of(k);
  const bool in_place = count == 1 && s->map != RowMap::kSegmentSum;
  const float* row[kStrip + 1];
  if (in_place)
    for (int64_t t = 0; t < rows; ++t) row[t] = plain_row(*s, r0 + t);
  row[rows] = nullptr;
  for (int64_t u0 = 0; u0 < units; u0 += kUnitsAtOnce) {
    const int64_t u1 = smaller(u0 + kUnitsAtOnce, units), begin = u0 * kDepthUnit;
    for (int64_t t = 0; t < rows; ++t) {
      alignas(64) float buffer[kUnitsAtOnce * kDepthUnit];
      const float* from = in_place && row[t] != nullptr ? row[t] + begin : nullptr;
      const float* next = in_place && row[t + 1] != nullptr ? row[t + 1] + begin : nullptr;
      if (!in_place)
        from = read_columns(s, count, r0 + t, begin, smaller(u1 * kDepthUnit, k), buffer);
      for (int64_t unit = u0; unit < u1; ++unit) {
        const int64_t wide = smaller(kDepthUnit, k - unit * kDepthUnit), pairs = pairs_of(wide);
        if (next != nullptr) {
          __builtin_prefetch(next);
          __builtin_prefetch(next + kLines);
          next += kDepthUnit;
        }
        if (from == nullptr) {
          use(t, unit, Line{}, Line{});
          continue;
        }
        if (wide == kDepthUnit)
          use(t, unit, load(from), load(from + kLines));
        else
          use(t, unit, load_up_to(from, pairs), load_up_to(from + pairs, wide - pairs));
        from += kDepthUnit;
      }
    }
  }
}

// Rows [r0, r0 + rows) of sources side by side, k wide, to left strips.
void round_rows(const Source<float>* s, int32_t count, int64_t r0, int64_t rows, int64_t k,
                char* strips) {
  if (k == 0) return;
  for (int64_t first = 0; first < rows; first += kStrip, strips += units_of(k) * kUnitBytes) {
    const int64_t high = smaller(kStrip, rows - first);
    alignas(64) float inverse[kStrip];
    if (kIntegers) {
      begin_measuring(strips);
      for_each_line(s, count, r0 + first, high, k,
                    [&](int64_t t, int64_t, Line x, Line y) { measure_line(x, y, strips, t); });
      end_measuring(strips);
    }
    for (int64_t half = 0; half < 2; ++half)
      store(inverse + half * kLines, inverse_steps(strips, half));
    for_each_line(s, count, r0 + first, high, k, [&](int64_t t, int64_t unit, Line x, Line y) {
      put_line(x, y, strips + unit * kUnitBytes, t, inverse[t]);
    });
  }
}

// use(tile, unit, j) for each unit of rows [r0, r0 + rows) and 16 columns from j on. `buffer` takes
// a unit of rows and one of zeros.
template <class Use>
CAVS_INLINE void for_each_tile(const Source<float>* s, int32_t count, int64_t r0, int64_t rows,
                               int64_t begin, int64_t columns, float* buffer, Use use) {
  const int64_t stride = round_up(columns, kLines);
  const float* zeros = buffer + kDepthUnit * stride;
  fill(buffer + kDepthUnit * stride, 0.0f, columns);
  for (int64_t first = 0; first < rows; first += kDepthUnit) {
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
      const auto take = [&](auto read) {
        for (int64_t t = 0; t < kLines; ++t) tile.x[t] = read(x[t] + j), tile.y[t] = read(y[t] + j);
      };
      if (j + kLines <= columns)
        take([](const float* from) { return load(from); });
      else
        take([&](const float* from) { return load_up_to(from, columns - j); });
      use(tile, first / kDepthUnit, j);
    }
  }
}

// Rows of A^T as left strips, of B as right ones.
void round_left(const Source<float>* s, int32_t count, int64_t r0, int64_t rows, int64_t columns,
                char* strips, float* buffer) {
  const int64_t strip_bytes = units_of(rows) * kUnitBytes;
  const auto strip_of = [&](int64_t j) { return strips + j / kStrip * strip_bytes; };
  if (kIntegers && rows > 0) {
    for (int64_t j = 0; j < columns; j += kStrip) begin_measuring(strip_of(j));
    for_each_tile(s, count, r0, rows, 0, columns, buffer,
                  [&](const Tile& tile, int64_t, int64_t j) {
                    measure_tile(tile, strip_of(j), j / kLines % 2);
                  });
    for (int64_t j = 0; j < columns; j += kStrip) end_measuring(strip_of(j));
  }
  for_each_tile(
      s, count, r0, rows, 0, columns, buffer, [&](const Tile& tile, int64_t unit, int64_t j) {
        const int64_t half = j / kLines % 2;
        put_left(tile, strip_of(j) + unit * kUnitBytes, half, inverse_steps(strip_of(j), half));
      });
}
void round_right(const Source<float>* s, int32_t count, int64_t r0, int64_t rows, int64_t begin,
                 int64_t columns, char* strips, float* buffer) {
  const int64_t strip_bytes = units_of(rows) * kUnitBytes;
  for_each_tile(s, count, r0, rows, begin, columns, buffer,
                [&](const Tile& tile, int64_t unit, int64_t j) {
                  char* strip = strips + j / kStrip * strip_bytes;
                  put_right<false>(tile, strip + unit * kUnitBytes, j / kLines % 2);
                });
}

}  // namespace
}  // namespace cavs::CAVS_ISA
