// The two products of the kernel table by strips, rounding a block at a time.
#pragma once

#include "base/processors.h"
#include "kernels/isa_strip_operands.h"

namespace cavs::CAVS_ISA {
namespace {

size_t strips_size(int64_t k, int64_t n) {
  return static_cast<size_t>(ceil_div(n, kStrip) * units_of(k) * kUnitBytes / 4);
}

// Rows of A that are rounded at once: they stay in L2 while all strips of the weight pass.
CAVS_INLINE int64_t rows_at_once(int64_t k) {
  const int64_t fit = l2_bytes() / 2 / (larger(units_of(k), 1) * kUnitBytes);
  return smaller(larger(fit, 1), 8) * kStrip;
}

// Scratch: the strips of a block, then units of two rows.
size_t multiply_scratch(int64_t k) {
  const int64_t strips = rows_at_once(k) / kStrip * units_of(k) * kUnitBytes / 4;
  return static_cast<size_t>(kLines + strips + 2 * units_at_once(k) * kDepthUnit);
}

void multiply(const Source<float>* a, int32_t num_sources, int64_t r0, int64_t r1,
              const float* packed, int64_t packed_k, int64_t k, int64_t n, int64_t p0, int64_t p1,
              float* c, int64_t c_stride, int64_t c_base, bool accumulate, float* scratch) {
  const int64_t units = units_of(k), left_bytes = units * kUnitBytes;
  const int64_t right_bytes = units_of(packed_k) * kUnitBytes;
  char* left = aligned(scratch);
  const int64_t most = rows_at_once(k), blocks = ceil_div(r1 - r0, most);
  auto* buffer = reinterpret_cast<float*>(left + most / kStrip * left_bytes);
  const int64_t share = blocks > 0 ? round_up(ceil_div(r1 - r0, blocks), kStrip) : 0;
  Unit unit;
  for (int64_t b0 = r0; b0 < r1; b0 += share) {
    const int64_t rows = smaller(share, r1 - b0);
    round_rows(a, num_sources, b0, rows, k, left, buffer);
    float* out = c + (b0 - c_base) * c_stride;
    const int64_t most_together = strips_together(rows);
    for (int64_t p = p0, together = 1; p < p1; p += together) {
      const char* right = reinterpret_cast<const char*>(packed) + p * right_bytes;
      const int64_t j = p * kStrip, all = j + most_together * kStrip;
      together = most_together > 1 && p + most_together <= p1 && all <= n ? most_together : 1;
      if (together > 1)
        multiply_side_by_side(unit, left, right, right_bytes, k,
                              {out + j, c_stride, rows, together * kStrip, accumulate});
      else
        for (int64_t i = 0; i < rows; i += kStrip)
          multiply_strips(unit, left + i / kStrip * left_bytes, right, k,
                          {out + i * c_stride + j, c_stride, smaller(kStrip, rows - i),
                           smaller(kStrip, n - j), accumulate});
    }
  }
}

// Rows of A and B that are rounded at once, and columns of B.
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

void multiply_tn(const RowPairs<float>* parts, int32_t count, int64_t k, int64_t whole_k, int64_t n,
                 int64_t n0, int64_t n1, float* out, int64_t out_stride, bool accumulate,
                 float* scratch) {
  const int64_t most = rows_of_gradient(whole_k, n), columns = smaller(n, kColumnsAtOnce);
  auto* buffer = reinterpret_cast<float*>(aligned(scratch));
  char* left = aligned(buffer + (kDepthUnit + 1) * round_up(larger(k, columns), kLines));
  char* right = left + ceil_div(k, kStrip) * units_of(most) * kUnitBytes;
  Unit unit;
  const int64_t all = rows_of(parts, count);
  const int64_t blocks = larger(ceil_div(all, most), 1);  // even without rows, out is written
  const int64_t share = round_up(ceil_div(all, blocks), kDepthUnit);
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t begin = smaller(i * share, all), rows = smaller(share, all - begin);
    const Block<float> block{parts, count, begin, rows};
    const bool more = accumulate || i > 0;
    const int64_t strip_bytes = units_of(rows) * kUnitBytes;
    round_left(block, k, left, buffer);
    for (int64_t first = n0; first < n1; first += kColumnsAtOnce) {
      const int64_t width = smaller(kColumnsAtOnce, n1 - first);
      round_right(block, first, width, right, buffer);
      for (int64_t y = 0; y < k; y += kStrip) {
        for (int64_t x = 0; x < width; x += kStrip) {
          multiply_strips(unit, left + y / kStrip * strip_bytes, right + x / kStrip * strip_bytes,
                          rows,
                          {out + y * out_stride + first + x, out_stride, smaller(kStrip, k - y),
                           smaller(kStrip, width - x), more});
        }
      }
    }
  }
}

}  // namespace
}  // namespace cavs::CAVS_ISA
