// The two products of the kernel table on the matrix unit: a packed weight is the right strips of
// its columns, rows of A are split into left strips, a block at a time.
#pragma once

#include "base/processors.h"
#include "kernels/isa_matrix_unit.h"

namespace cavs::CAVS_ISA {
namespace {

size_t strips_size(int64_t k, int64_t n) {
  return static_cast<size_t>(ceil_div(n, kStrip) * units_of(k) * kUnitBytes / 4);
}

// A piece of a weight: element (i, j) at data[i * row_stride + j * col_stride].
struct Piece {
  const float* data;
  int64_t row_stride, col_stride, rows, cols;

  // Elements [first, first + 16) of `count`, which lie together; zeros outside.
  static CAVS_INLINE Line line(const float* p, int64_t first, int64_t count) {
    if (first >= 0) return load_up_to(p + first, count - first);
    Line v{};
    for (int64_t t = -first; t < kLines && first + t < count; ++t) v[t] = p[first + t];
    return v;
  }
  // Rows [i, i + 16) of columns [j, j + 16), zeros outside. Rows whose elements lie together are
  // read by row, others by column.
  CAVS_INLINE void read(int64_t i, int64_t j, Line (&out)[kLines]) const {
    const bool by_row = col_stride == 1;
    const int64_t first = by_row ? i : j, count = by_row ? rows : cols;
    const int64_t stride = by_row ? row_stride : col_stride;
    for (int64_t t = 0; t < kLines; ++t) {
      if (first + t < 0 || first + t >= count)
        out[t] = Line{};
      else if (by_row || row_stride == 1)
        out[t] = line(data + (first + t) * stride, by_row ? j : i, by_row ? cols : rows);
      else
        for (int64_t u = 0; u < kLines; ++u)
          out[t][u] =
              i + u >= 0 && i + u < rows ? data[(i + u) * row_stride + (j + t) * stride] : 0;
    }
    if (!by_row) transpose<float>(out);
  }
  // Rows [i, i + 32) of columns [j, j + 16) to a right tile, and what is left of them behind it;
  // what is not of the piece stays.
  void place(int64_t i, int64_t j, char* tile) const {
    Line x[kLines], y[kLines];
    read(i, j, x);
    read(i + kLines, j, y);
    if (i >= 0 && i + kDepthUnit <= rows && j >= 0 && j + kLines <= cols) {
      for (int64_t t = 0; t < kLines; ++t) put_line(x[t], y[t], tile + t * kLineBytes);
      return;
    }
    const auto column = iota<float>() + static_cast<int32_t>(j);
    const Bits columns = (Bits)(column >= 0 && column < static_cast<int32_t>(cols));
    for (int64_t t = 0; t < kLines; ++t, tile += kLineBytes) {
      const bool first = i + t >= 0 && i + t < rows;
      const bool second = i + t + kLines >= 0 && i + t + kLines < rows;
      const Bits mask = columns & ((first ? 0xffffu : 0u) | (second ? 0xffff0000u : 0u));
      Bits nearest, rest;
      split(x[t], y[t], nearest, rest);
      auto* to = reinterpret_cast<Bits*>(tile);
      *to = (*to & ~mask) | (nearest & mask);
      if constexpr (!kTwo) continue;
      to += kRest / kLineBytes;
      *to = (*to & ~mask) | (rest & mask);
    }
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
        piece.place(unit * kDepthUnit - k0, column - n0, units + half * kSecond);
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

// Rows [r0, r0 + rows) of sources side by side, k wide, as left strips.
void split_rows(const Source<float>* s, int32_t count, int64_t r0, int64_t rows, int64_t k,
                char* strips) {
  const int64_t units = units_of(k);
  const bool in_place = count == 1 && s->map != RowMap::kSegmentSum;
  for (int64_t first = 0; first < rows; first += kStrip, strips += units * kUnitBytes) {
    const int64_t high = smaller(kStrip, rows - first);
    const float* row[kStrip];
    if (in_place)
      for (int64_t t = 0; t < high; ++t) row[t] = plain_row(*s, r0 + first + t);
    for (int64_t unit = 0; unit < units; ++unit) {  // so that lines are written one after another
      const int64_t j = unit * kDepthUnit, wide = smaller(kDepthUnit, k - j);
      char* out = strips + unit * kUnitBytes;
      for (int64_t t = 0; t < high; ++t, out += kLineBytes) {
        if (t == kLines) out += kSecond - kTileBytes;
        alignas(64) float buffer[kDepthUnit];
        const float* from = in_place ? row[t] : nullptr;
        if (!in_place)
          from = read_columns(s, count, r0 + first + t, j, j + wide, buffer);
        else if (from != nullptr)
          from += j;
        if (from == nullptr)
          put_line(Line{}, Line{}, out);
        else if (wide == kDepthUnit)
          put_line(load(from), load(from + kLines), out);
        else
          put_line(load_up_to(from, wide), load_up_to(from + kLines, wide - kLines), out);
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
    for (int64_t p = p0; p < p1; ++p) {
      const char* right = reinterpret_cast<const char*>(packed) + p * right_bytes;
      const int64_t j = p * kStrip, cols = smaller(kStrip, n - j);
      if (rows <= kLines && p + 1 < p1 && j + 2 * kStrip <= n) {
        multiply_flat<4>(unit, left, right, right_bytes, units,
                         {out + j, c_stride, rows, 2 * kStrip, accumulate});
        ++p;
        continue;
      }
      for (int64_t i = 0; i < rows; i += kStrip)
        multiply_any(unit, left + i / kStrip * left_bytes, right, units, out + i * c_stride + j,
                     c_stride, smaller(kStrip, rows - i), cols, accumulate);
    }
  }
}

// Rows of A and B that are split at once, and columns of B.
CAVS_INLINE int64_t rows_of_gradient(int64_t k, int64_t n) {
  return k * n * 4 > (2 << 20) ? 512 : 256;
}
constexpr int64_t kColumnsAtOnce = 512;

size_t multiply_tn_scratch(int64_t k, int64_t n) {
  const int64_t columns = smaller(n, kColumnsAtOnce);
  const int64_t strips = ceil_div(k, kStrip) + ceil_div(columns, kStrip);
  return static_cast<size_t>(2 * kLines + kDepthUnit * round_up(larger(k, columns), kLines) +
                             strips * units_of(rows_of_gradient(k, n)) * kUnitBytes / 4);
}

// Rows [r0, r0 + rows) of A^T as left, or of B as right strips of `columns` columns.
template <bool Left>
void split_columns(const Source<float>* s, int32_t count, int64_t r0, int64_t rows, int64_t begin,
                   int64_t columns, char* strips, float* buffer) {
  const int64_t strip_bytes = units_of(rows) * kUnitBytes, stride = round_up(columns, kLines);
  for (int64_t first = 0; first < rows; first += kDepthUnit, strips += kUnitBytes) {
    const float* row[kDepthUnit];
    for (int64_t t = 0; t < kDepthUnit; ++t)
      row[t] = first + t < rows ? read_columns(s, count, r0 + first + t, begin, begin + columns,
                                               buffer + t * stride)
                                : nullptr;
    for (int64_t j = 0; j < columns; j += kLines) {
      Line x[kLines], y[kLines];
      for (int64_t t = 0; t < kLines; ++t) {
        x[t] = row[t] != nullptr ? load_up_to(row[t] + j, columns - j) : Line{};
        y[t] = row[t + kLines] != nullptr ? load_up_to(row[t + kLines] + j, columns - j) : Line{};
      }
      if constexpr (Left) transpose<float>(x);
      if constexpr (Left) transpose<float>(y);
      char* out = strips + j / kStrip * strip_bytes + j / kLines % 2 * kSecond;
      for (int64_t t = 0; t < kLines; ++t) put_line(x[t], y[t], out + t * kLineBytes);
    }
  }
}

void multiply_tn(const Source<float>* a, int32_t num_a, const Source<float>* b, int32_t num_b,
                 int64_t r0, int64_t r1, int64_t k, int64_t whole_k, int64_t n, int64_t n0,
                 int64_t n1, float* out, int64_t out_stride, bool accumulate, float* scratch) {
  const int64_t most = rows_of_gradient(whole_k, n), columns = smaller(n, kColumnsAtOnce);
  auto* buffer = reinterpret_cast<float*>(aligned(scratch));
  char* left = aligned(buffer + kDepthUnit * round_up(larger(k, columns), kLines));
  char* right = left + ceil_div(k, kStrip) * units_of(most) * kUnitBytes;
  Unit unit;
  const int64_t blocks = larger(ceil_div(r1 - r0, most), 1);  // without rows, too: out is written
  const int64_t share = round_up(ceil_div(r1 - r0, blocks), kDepthUnit);
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t b0 = smaller(r0 + block * share, r1), rows = smaller(share, r1 - b0);
    const int64_t units = units_of(rows), strip_bytes = units * kUnitBytes;
    split_columns<true>(a, num_a, b0, rows, 0, k, left, buffer);
    for (int64_t first = n0; first < n1; first += kColumnsAtOnce) {
      const int64_t width = smaller(kColumnsAtOnce, n1 - first);
      split_columns<false>(b, num_b, b0, rows, first, width, right, buffer);
      for (int64_t i = 0; i < k; i += kStrip) {
        for (int64_t j = 0; j < width; j += kStrip) {
          multiply_any(unit, left + i / kStrip * strip_bytes, right + j / kStrip * strip_bytes,
                       units, out + i * out_stride + first + j, out_stride, smaller(kStrip, k - i),
                       smaller(kStrip, width - j), accumulate || block > 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace cavs::CAVS_ISA
