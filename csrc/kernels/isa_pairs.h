// Products of strips by the instruction that AVX-512 BF16 has for them: each lane adds the products
// of a pair of bfloat16 to a float32, two steps of the sum for the time of one.
#pragma once

#include "kernels/isa_strips.h"

namespace cavs::CAVS_ISA {
namespace {

static_assert(!kTwo, "three products would take longer than one of float32");

struct Unit {};  // nothing to hold

// Rows of a gradient that are added at once, of a large one: a strip of them fits L1.
constexpr int64_t kRowsOfLarge = 320;

// Masked as in isa_vector.h.
CAVS_INLINE Line add_pairs(Line sum, __m512bh x, __m512bh y) {
  return _mm512_maskz_dpbf16_ps(0xffff, sum, x, y);
}

// Sums that fit the registers beside a line of each right tile and a pair of the left one.
constexpr int kSums = 24, kRowsOfSums = kSums / 2;

// R rows of a left strip with V right tiles, the strips of these `apart` bytes from each other. An
// element is summed in one order for any R and V.
template <int R, int V>
__attribute__((noinline)) void multiply_pairs(const char* a, const char* b, int64_t apart,
                                              int64_t steps, const Result& c) {
  Line sum[R][V];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      sum[i][v] = Line{};
      // C is touched once, at the end: its lines come while the sum runs.
      __builtin_prefetch(c.data + i * c.stride + v * kLines, 1);
    }
  }
  for (; steps > 0; steps -= kDepthUnit, a += kUnitBytes, b += kUnitBytes) {
    for (int64_t j = 0, pairs = pairs_of(steps); j < pairs; ++j) {
      __m512bh right[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v)
        right[v] = *reinterpret_cast<const __m512bh*>(b + v / 2 * apart + v % 2 * kSecond +
                                                      j * kLineBytes);
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) {
        const auto pair = *reinterpret_cast<const int32_t*>(a + i * kLineBytes + j * 4);
        const auto left = (__m512bh)_mm512_maskz_set1_epi32(0xffff, pair);
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) sum[i][v] = add_pairs(sum[i][v], left, right[v]);
      }
    }
  }
  const int tail = static_cast<int>(c.cols) - (V - 1) * static_cast<int>(kLines);
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      float* to = c.data + i * c.stride + v * kLines;
      if (v < V - 1 || tail == kLines) {
        if (c.accumulate) sum[i][v] += load(to);
        store(to, sum[i][v]);
      } else {
        if (c.accumulate) sum[i][v] += load_partial(to, tail);
        store_partial(to, sum[i][v], tail);
      }
    }
  }
}

template <int R, int V>
CAVS_INLINE void multiply_rows(const char* a, const char* b, int64_t apart, int64_t steps,
                               const Result& c) {
  if constexpr (R > 1) {
    if (c.rows < R) return multiply_rows<R - 1, V>(a, b, apart, steps, c);
  }
  multiply_pairs<R, V>(a, b, apart, steps, c);
}

// How many whole right strips a left one of so few rows takes at once: fewer sums would wait for
// each other.
constexpr int kRowsOfTwo = kSums / 4, kRowsOfFour = kSums / 8;
CAVS_INLINE int64_t strips_beside(int64_t rows) {
  return rows <= kRowsOfFour ? 4 : rows <= kRowsOfTwo ? 2 : 1;
}
CAVS_INLINE void multiply_beside(Unit&, const char* a, const char* b, int64_t apart, int64_t steps,
                                 const Result& c) {
  if (c.rows <= kRowsOfFour)
    multiply_rows<kRowsOfFour, 8>(a, b, apart, steps, c);
  else
    multiply_rows<kRowsOfTwo, 4>(a, b, apart, steps, c);
}

// Strips of any number of rows and columns: as many rows at a time as there are sums.
CAVS_INLINE void multiply_strips(Unit&, const char* a, const char* b, int64_t steps, Result c) {
  const int64_t rows = c.rows, parts = ceil_div(rows, kRowsOfSums);
  float* data = c.data;
  for (int64_t i = 0, first = 0; i < parts; ++i, first += c.rows) {
    c.rows = rows * (i + 1) / parts - first;
    c.data = data + first * c.stride;
    const char* left = a + first * kLineBytes;
    if (c.cols > kLines)
      multiply_rows<kRowsOfSums, 2>(left, b, 0, steps, c);
    else
      multiply_rows<kRowsOfSums, 1>(left, b, 0, steps, c);
  }
}

}  // namespace
}  // namespace cavs::CAVS_ISA
