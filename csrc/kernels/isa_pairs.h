// Products of strips by the instructions that AVX-512 BF16 and AVX-512 VNNI have for them: each
// lane adds the products of a pair of bfloat16 to a float32, or of integers to an integer, two
// steps of the sum for the time of one.
#pragma once

#ifdef CAVS_INTEGERS
#include "kernels/isa_integers.h"
#else
#include "kernels/isa_split.h"
#endif

namespace cavs::CAVS_ISA {
namespace {

static_assert(!kTwo, "three products would take longer than one of float32");

struct Unit {};  // nothing to hold

// Rows of a gradient that are added at once, of a large one.
constexpr int64_t kRowsOfLarge = 448;

#ifdef CAVS_INTEGERS
// In its own words: gcc 12 copies every sum where it knows the instruction.
CAVS_INLINE Bits add_pairs(Bits sum, Bits x, Bits y) {
  asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y));
  return sum;
}
#else
// Masked as in isa_vector.h.
CAVS_INLINE Line add_pairs(Line sum, Bits x, Bits y) {
  return _mm512_maskz_dpbf16_ps(0xffff, sum, (__m512bh)x, (__m512bh)y);
}
#endif

// Sums that fit the registers beside a line of each right tile and a pair of the left one: of
// integers each is two, one of a unit.
constexpr int kSums = kIntegers ? 14 : 24, kRowsOfSums = kSums / 2;

// Adds the products of R lines of a left unit with V right tiles, whose strips are `apart` bytes
// from each other. The first rows of a strip find its right operand in L2 or farther: what they
// read two units later is asked for, unless so few rows read so much that there is no time.
template <class Sum, int R, int V>
CAVS_INLINE void add_lines(Sum (&sum)[R][V], const char* a, const char* b, int64_t apart,
                           int64_t pairs) {
  for (int64_t j = 0; j < pairs; ++j) {
    Bits right[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      const char* line = b + v / 2 * apart + v % 2 * kSecond + j * kLineBytes;
      right[v] = *reinterpret_cast<const Bits*>(line);
      if (V <= 2) __builtin_prefetch(line + 2 * kUnitBytes);
    }
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const auto pair = *reinterpret_cast<const int32_t*>(a + i * kLineBytes + j * 4);
      const auto left = (Bits)_mm512_maskz_set1_epi32(0xffff, pair);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sum[i][v] = add_pairs(sum[i][v], left, right[v]);
    }
  }
}

// The same in float32: integers are summed for a unit, then multiplied by the right one's steps.
template <int R, int V>
CAVS_INLINE void add_unit(Line (&sum)[R][V], const char* a, const char* b, int64_t apart,
                          int64_t pairs) {
  if constexpr (kIntegers) {
    Bits whole[R][V] = {};
    add_lines(whole, a, b, apart, pairs);
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      const Line steps = reinterpret_cast<const Line*>(b + v / 2 * apart + kSteps)[v % 2];
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i)
        sum[i][v] += (Line)_mm512_maskz_cvtepi32_ps(0xffff, (__m512i)whole[i][v]) * steps;
    }
  } else {
    add_lines(sum, a, b, apart, pairs);
  }
}

// R rows of left strips from `first` on with V right tiles, the strips of these `apart` bytes from
// each other, and the steps of the left one's rows. An element is summed in one order for any R, V.
template <int R, int V>
__attribute__((noinline)) void multiply_pairs(const char* a, const float* left_steps, int64_t first,
                                              const char* b, int64_t apart, int64_t steps,
                                              const Result& c) {
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
  a += first * kLineBytes;
  left_steps += first;
  const bool any = steps > 0;  // of nothing there are no steps
  for (; steps > 0; steps -= kDepthUnit, a += kUnitBytes, b += kUnitBytes)
    add_unit(sum, a, b, apart, pairs_of(steps));
  const int tail = static_cast<int>(c.cols) - (V - 1) * static_cast<int>(kLines);
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      float* to = c.data + i * c.stride + v * kLines;
      if (kIntegers && any) sum[i][v] *= broadcast(left_steps[i]);
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
CAVS_INLINE void multiply_rows(const char* a, const float* left_steps, int64_t first, const char* b,
                               int64_t apart, int64_t steps, const Result& c) {
  if constexpr (R > 1) {
    if (c.rows < R) return multiply_rows<R - 1, V>(a, left_steps, first, b, apart, steps, c);
  }
  multiply_pairs<R, V>(a, left_steps, first, b, apart, steps, c);
}

// How many whole right strips a left one of so few rows takes at once: fewer sums would wait for
// each other.
constexpr int kRowsOfTwo = kSums / 4, kRowsOfFour = kSums / 8;
CAVS_INLINE int64_t strips_beside(int64_t rows) {
  return rows <= kRowsOfFour ? 4 : rows <= kRowsOfTwo ? 2 : 1;
}
CAVS_INLINE void multiply_beside(Unit&, const char* a, const char* b, int64_t apart, int64_t steps,
                                 const Result& c) {
  const auto* left_steps = reinterpret_cast<const float*>(a + kSteps);
  if (c.rows <= kRowsOfFour)
    multiply_rows<kRowsOfFour, 8>(a, left_steps, 0, b, apart, steps, c);
  else
    multiply_rows<kRowsOfTwo, 4>(a, left_steps, 0, b, apart, steps, c);
}

// Strips of any number of rows and columns: as many rows at a time as there are sums.
CAVS_INLINE void multiply_strips(Unit&, const char* a, const char* b, int64_t steps,
                                 const Result& c) {
  const auto* left_steps = reinterpret_cast<const float*>(a + kSteps);
  const int64_t parts = ceil_div(c.rows, kRowsOfSums);
  Result to = c;
  for (int64_t i = 0, first = 0; i < parts; ++i, first += to.rows) {
    to.rows = c.rows * (i + 1) / parts - first;
    to.data = c.data + first * c.stride;
    if (to.cols > kLines)
      multiply_rows<kRowsOfSums, 2>(a, left_steps, first, b, 0, steps, to);
    else
      multiply_rows<kRowsOfSums, 1>(a, left_steps, first, b, 0, steps, to);
  }
}

}  // namespace
}  // namespace cavs::CAVS_ISA
