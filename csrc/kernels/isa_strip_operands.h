// Operands of products by strips: a packed weight is stored as the right strips of its columns,
// rows are rounded to left strips, and columns of rows to either.
#pragma once

#ifdef CAVS_MATRIX_UNIT
#include "kernels/isa_matrix_unit.h"
#else
#include "kernels/isa_pairs.h"
#endif

namespace cavs::CAVS_ISA {
namespace {

// n <= 16 elements from `first` on of `count`, at steps of `stride`; zeros outside.
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

// Columns [j, j + 16) and rows [i, i + 2 * pairs) of a part of a weight; zeros outside of it
// (Whole: nothing is outside). Columns are read where their elements are contiguous. Elements a
// fixed distance ahead are prefetched to L2, because rows of many widths share few sets of L1.
constexpr int64_t kAhead = 2 * kStrip;
template <bool Whole>
CAVS_INLINE void read_part(const WeightPart<float>& w, int64_t i, int64_t j, int64_t pairs,
                           Tile& tile) {
  const auto line = [&](const float* from, int64_t stride, int64_t first, int64_t n,
                        int64_t count) {
    __builtin_prefetch(from + first * stride + kAhead, 0, 2);
    if (Whole && stride == 1) return load(from + first);
    return line_within(from, stride, first, n, count);
  };
  const auto row = [&](int64_t at) {
    if (!Whole && (at < 0 || at >= w.rows)) return Line{};
    return line(w.data + at * w.row_stride, 1, j, kLines, w.cols);
  };
  const auto column = [&](int64_t at, int64_t first) {
    if (!Whole && (at < 0 || at >= w.cols)) return Line{};
    return line(w.data + at * w.col_stride, w.row_stride, first, pairs, w.rows);
  };
  const bool by_row = w.col_stride == 1;
  for (int64_t t = 0; t < kLines; ++t) {
    if (by_row && t >= pairs) {
      tile.x[t] = tile.y[t] = Line{};
    } else {
      tile.x[t] = by_row ? row(i + t) : column(j + t, i);
      tile.y[t] = by_row ? row(i + pairs + t) : column(j + t, i + pairs);
    }
  }
  if (by_row) return;
  transpose<float>(tile.x);
  transpose<float>(tile.y);
}

// A right tile of a weight composed of parts: columns [j, j + 16), rows [i, i + 2 * pairs).
CAVS_INLINE void read_weight(const WeightPart<float>* parts, int32_t count, int64_t i, int64_t j,
                             int64_t pairs, Tile& tile) {
  for (int32_t p = 0; p < count; ++p) {
    const WeightPart<float>& w = parts[p];
    const int64_t row = i - w.k0, column = j - w.n0;
    if (pairs == kLines && row >= 0 && row + kDepthUnit <= w.rows && column >= 0 &&
        column + kLines <= w.cols)
      return read_part<true>(w, row, column, pairs, tile);
  }
  tile = {};
  for (int32_t p = 0; p < count; ++p) {
    const WeightPart<float>& w = parts[p];
    const int64_t row = i - w.k0, column = j - w.n0;
    if (row >= w.rows || row + 2 * pairs <= 0 || column >= w.cols || column + kLines <= 0) continue;
    Tile part;
    read_part<false>(w, row, column, pairs, part);
    for (int64_t t = 0; t < kLines; ++t) tile.x[t] += part.x[t], tile.y[t] += part.y[t];
  }
}

// Number of neighbouring tiles for so many columns of a strip, or more for several.
CAVS_INLINE int64_t halves_of(int64_t columns) { return smaller(ceil_div(columns, kLines), 2); }

// Store a right unit. The steps of both tiles are computed first, because their latency is long.
CAVS_INLINE void put_unit(const Tiles* tiles, int64_t halves, char* unit) {
  Line steps[2];
  for (int64_t half = 0; half < halves; ++half) steps[half] = right_steps(tiles[half]);
  for (int64_t half = 0; half < halves; ++half) put_right(tiles[half], unit, half, steps[half]);
}

// See Kernels::pack. Units follow each other as their elements do in memory: along rows, or along
// columns of a transposed weight.
void pack_strips(const WeightPart<float>* parts, int32_t count, int64_t k, int64_t n, int64_t p0,
                 int64_t p1, float* packed) {
  const int64_t units = units_of(k), strips = p1 - p0;
  const bool by_row = count > 0 && parts[0].col_stride == 1;
  const int64_t inner = by_row ? strips : units, next = (by_row ? units : 1) * kUnitBytes;
  for (int64_t at = 0; at < strips * units; ++at) {
    const int64_t strip = p0 + (by_row ? at % inner : at / inner);
    const int64_t u = by_row ? at / inner : at % inner, row = u * kDepthUnit;
    char* unit = reinterpret_cast<char*>(packed) + (strip * units + u) * kUnitBytes;
    // Prefetch what is written next: few writes can be outstanding at once.
    for (int64_t t = 0; t < kUnitBytes; t += kLineBytes) __builtin_prefetch(unit + next + t, 1);
    const int64_t halves = halves_of(n - strip * kStrip);
    Tiles tiles[2];
    for (int64_t half = 0; half < halves; ++half) {
      tiles[half].parts = parts_of(k - row);
      for (int64_t part = 0; part < tiles[half].parts; ++part) {
        const int64_t i = row + part * kDepthPart;
        read_weight(parts, count, i, strip * kStrip + half * kLines, pairs_of(k - i),
                    tiles[half].part[part]);
      }
    }
    put_unit(tiles, halves, unit);
  }
}

// Columns [begin, end) of row r of sources side by side: in place if a single row, else in
// `buffer`; null for zeros.
CAVS_INLINE const float* read_columns(const Source<float>* s, int32_t count, int64_t r,
                                      int64_t begin, int64_t end, float* buffer) {
  if (count == 1) return read_row(*s, r, begin, end - begin, buffer);
  int64_t start = 0;  // first column of source i in the joined row
  for (int32_t i = 0; i < count; ++i) {
    const int64_t from = larger(begin - start, 0), to = smaller(end - start, s[i].width);
    if (from < to) copy_row(s[i], r, from, to - from, buffer + (start + from - begin));
    start += s[i].width;
  }
  return buffer;
}

// Units of a row that are read at once: few enough that what is written stays in L1, enough that
// processors predict what is read; all if they are read twice.
CAVS_INLINE int64_t units_at_once(int64_t k) { return kIntegers ? larger(units_of(k), 1) : 8; }

// Convert rows [r0, r0 + rows) of sources side by side, k wide, to left strips. `buffer` holds
// units of two rows. The step of a row, whose latency is long, is computed before the row above is
// stored.
void round_rows(const Source<float>* s, int32_t count, int64_t r0, int64_t rows, int64_t k,
                char* strips, float* buffer) {
  const int64_t units = units_of(k), most = units_at_once(k);
  const bool in_place = count == 1 && s->map != RowMap::kSegmentSum;
  for (int64_t first = 0; first < rows; first += kStrip, strips += units * kUnitBytes) {
    const int64_t high = smaller(kStrip, rows - first);
    const float* row[kStrip + 2];
    if (in_place)
      for (int64_t t = 0; t < high; ++t) row[t] = plain_row(*s, r0 + first + t);
    row[high] = row[high + 1] = nullptr;
    for (int64_t u0 = 0; u0 < units; u0 += most) {
      const int64_t u1 = smaller(u0 + most, units), begin = u0 * kDepthUnit;
      const auto row_at = [&](int64_t t) {
        return in_place && row[t] != nullptr ? row[t] + begin : nullptr;
      };
      const auto read = [&](int64_t t) {
        if (in_place || t == high) return row_at(t);
        return read_columns(s, count, r0 + first + t, begin, smaller(u1 * kDepthUnit, k),
                            buffer + t % 2 * most * kDepthUnit);
      };
      const auto for_each_part = [&](const float* p, auto use) {
        for (int64_t at = u0 * kParts; at < u1 * kParts && at * kDepthPart < k; ++at) {
          const int64_t wide = smaller(kDepthPart, k - at * kDepthPart), pairs = pairs_of(wide);
          if (p == nullptr) {
            use(at, Line{}, Line{});
            continue;
          }
          if (wide == kDepthPart)
            use(at, load(p), load(p + kLines));
          else
            use(at, load_up_to(p, pairs), load_up_to(p + pairs, wide - pairs));
          p += kDepthPart;
        }
      };
      const auto inverse_step = [&](int64_t t, const float* from) {
        if (t == high) return 0.0f;
        Measure measure;
        const int64_t last = ceil_div(k, kDepthPart) - 1;
        if (kIntegers)
          for_each_part(from, [&](int64_t at, Line x, Line y) {
            measure.add(x, y, at % kParts == kParts - 1 || at == last);
          });
        return measure.end(strips, t);
      };
      const float* from = read(0);
      float inverse = inverse_step(0, from);
      for (int64_t t = 0; t < high; ++t) {
        const float *below = read(t + 1), *next = row_at(t + 2);
        const float inverse_below = inverse_step(t + 1, below);
        for_each_part(from, [&](int64_t at, Line x, Line y) {
          if (next != nullptr) {
            __builtin_prefetch(next);
            __builtin_prefetch(next + kLines);
            next += kDepthPart;
          }
          put_line(x, y, strips + at / kParts * kUnitBytes + at % kParts * kPartBytes, t, inverse);
        });
        from = below;
        inverse = inverse_below;
      }
      for (int64_t unit = u0; unit < u1; ++unit)
        put_excess(strips + unit * kUnitBytes, parts_of(k - unit * kDepthUnit), high);
    }
  }
}

// Call use(tiles, unit, j) for each unit of rows of a block and 16 columns from j on. `buffer`
// holds a unit of rows and one of zeros.
template <Side side, class Use>
CAVS_INLINE void for_each_tile(const Block<float>& block, int64_t begin, int64_t columns,
                               float* buffer, Use use) {
  const int64_t rows = block.rows, stride = round_up(columns, kLines);
  const float* zeros = buffer + kDepthUnit * stride;
  fill(buffer + kDepthUnit * stride, 0.0f, columns);
  for (int64_t first = 0; first < rows; first += kDepthUnit) {
    Tiles tiles;
    tiles.parts = parts_of(rows - first);
    const float *x[kParts][kLines], *y[kParts][kLines];  // rows of the pairs of a line
    const auto find = [&](int64_t t) {
      if (first + t >= rows) return zeros;
      const auto [part, r] = block.row(first + t);
      const float* row = read_columns(sources_of<side>(*part), num_sources_of<side>(*part), r,
                                      begin, begin + columns, buffer + t * stride);
      return row != nullptr ? row : zeros;
    };
    for (int64_t part = 0; part < tiles.parts; ++part) {
      const int64_t begin_part = part * kDepthPart, pairs = pairs_of(rows - first - begin_part);
      for (int64_t t = 0; t < kLines; ++t) {
        x[part][t] = t < pairs ? find(begin_part + t) : zeros;
        y[part][t] = t < pairs ? find(begin_part + pairs + t) : zeros;
      }
    }
    for (int64_t j = 0; j < columns; j += kLines) {
      const auto take = [&](auto read) {
        for (int64_t part = 0; part < tiles.parts; ++part) {
          Tile& tile = tiles.part[part];
          for (int64_t t = 0; t < kLines; ++t) {
            tile.x[t] = read(x[part][t] + j);
            tile.y[t] = read(y[part][t] + j);
          }
        }
      };
      if (j + kLines <= columns)
        take([](const float* from) { return load(from); });
      else
        take([&](const float* from) { return load_up_to(from, columns - j); });
      use(tiles, first / kDepthUnit, j);
    }
  }
}

// Rows of A^T as left strips, of B as right ones.
void round_left(const Block<float>& block, int64_t columns, char* strips, float* buffer) {
  const int64_t strip_bytes = units_of(block.rows) * kUnitBytes;
  const auto strip_of = [&](int64_t j) { return strips + j / kStrip * strip_bytes; };
  if (kIntegers && block.rows > 0) {
    for (int64_t j = 0; j < columns; j += kStrip) begin_measuring(strip_of(j));
    for_each_tile<Side::kLeft>(block, 0, columns, buffer,
                               [&](const Tiles& tiles, int64_t, int64_t j) {
                                 measure_tiles(tiles, strip_of(j), j / kLines % 2);
                               });
    for (int64_t j = 0; j < columns; j += kStrip) end_measuring(strip_of(j));
  }
  for_each_tile<Side::kLeft>(
      block, 0, columns, buffer, [&](const Tiles& tiles, int64_t unit, int64_t j) {
        const int64_t half = j / kLines % 2;
        put_left(tiles, strip_of(j) + unit * kUnitBytes, half, inverse_steps(strip_of(j), half));
      });
}
void round_right(const Block<float>& block, int64_t begin, int64_t columns, char* strips,
                 float* buffer) {
  const int64_t strip_bytes = units_of(block.rows) * kUnitBytes;
  for_each_tile<Side::kRight>(
      block, begin, columns, buffer, [&](const Tiles& tiles, int64_t unit, int64_t j) {
        char* strip = strips + j / kStrip * strip_bytes;
        put_right(tiles, strip + unit * kUnitBytes, j / kLines % 2, right_steps(tiles));
      });
}

}  // namespace
}  // namespace cavs::CAVS_ISA
