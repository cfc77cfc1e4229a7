// Products of strips by the instructions of AVX-512 BF16 and AVX-512 VNNI: each lane adds the
// products of a pair of bfloat16 to a float32, or of integers to an integer, two steps of the sum
// in the time of one.
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

// Rows that are added to a large gradient at once.
constexpr int64_t kRowsOfLarge = 448;

#ifndef CAVS_INTEGERS
// Masked as in isa_vector.h.
CAVS_INLINE Line add_pairs(Line sum, Bits x, Bits y) {
  return _mm512_maskz_dpbf16_ps(0xffff, sum, (__m512bh)x, (__m512bh)y);
}
#endif

// Number of sums that fit the registers together with two lines of each right tile, or one, and
// pairs of the left one; of integers each sum takes two registers, one for a unit.
constexpr int kSums = kWinograd ? 12 : kIntegers ? 14 : 24, kRowsOfSums = kSums / 2;

// The first rows of a strip find its right operand in L2 or farther, so they prefetch what is read
// two parts later, unless so few rows read so much that there is no time.
template <int V>
CAVS_INLINE void ask_for(const char* line) {
  if (V <= 2) __builtin_prefetch(line + 2 / kParts * kUnitBytes);
}
// Pair j of left rows, in all lanes.
CAVS_INLINE Bits left_pair(const char* a, int64_t j) {
  return (Bits)_mm512_maskz_set1_epi32(0xffff, reinterpret_cast<const int32_t*>(a)[j]);
}
CAVS_INLINE Bits right_pairs(const char* line) { return *reinterpret_cast<const Bits*>(line); }
// Address of right tile v; strips are `distance` bytes from each other.
CAVS_INLINE const char* right_tile(const char* b, int64_t distance, int v) {
  return b + v / 2 * distance + v % 2 * kSecond;
}

// Add the products of R lines of a left part with V right tiles.
template <class Sum, int R, int V>
CAVS_INLINE void add_lines(Sum (&sum)[R][V], const char* a, const char* b, int64_t distance,
                           int64_t pairs) {
  for (int64_t j = 0; j < pairs; ++j) {
    Bits right[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      const char* line = right_tile(b, distance, v) + j * kLineBytes;
      right[v] = right_pairs(line);
      ask_for<V>(line);
    }
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const Bits left = left_pair(a + i * kLineBytes, j);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sum[i][v] = add_pairs(sum[i][v], left, right[v]);
    }
  }
}

// Sums that fit 16 bits.
CAVS_INLINE Bits add_halves(Bits x, Bits y) {
  return (Bits)_mm512_maskz_add_epi16(0xffffffffu, (__m512i)x, (__m512i)y);
}

// The same by half as many products, with additions before them (Winograd 1968, "A New Algorithm
// for Inner Product"): (a1 + b2) (a2 + b1) = a1 b1 + a2 b2 + a1 a2 + b1 b2 for pairs 1 and 2,
// modulo 2^32, so to the bit. The excess of each row and column, a1 a2 and b1 b2, is subtracted
// from the sums at the start.
template <int R, int V>
CAVS_INLINE void add_exchanged(Bits (&sum)[R][V], const char* a, const char* b, int64_t distance,
                               int64_t pairs) {
  for (int64_t j = 0; j < pairs; j += 2) {
    Bits right[V], next[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      const char* line = right_tile(b, distance, v) + j * kLineBytes;
      right[v] = right_pairs(line), next[v] = right_pairs(line + kLineBytes);
      ask_for<V>(line), ask_for<V>(line + kLineBytes);
    }
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const char* row = a + i * kLineBytes;
      const Bits left = left_pair(row, j), next_left = left_pair(row, j + 1);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v)
        sum[i][v] =
            add_pairs(sum[i][v], add_halves(left, next[v]), add_halves(next_left, right[v]));
    }
  }
}

// One or two rows are limited by memory instead, and would read twice as much of the left operand.
template <int R>
constexpr bool kExchanged = kWinograd && R > 2;

// Add the products of a unit: of integers first separately, then multiplied by the steps of the
// right operand. `excess` is that of the left rows.
template <int R, int V>
CAVS_INLINE void add_unit(Line (&sum)[R][V], const char* a, const char* excess, const char* b,
                          int64_t distance, int64_t steps) {
  if constexpr (kIntegers) {
    Bits whole[R][V];
    // For right tile v, a line after the tiles of its unit.
    const auto line_at = [&](int64_t offset, int v) {
      return b + v / 2 * distance + offset + v % 2 * kLineBytes;
    };
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) {
        whole[i][v] = Bits{};
        if (kExchanged<R>) whole[i][v] = left_pair(excess, i) + right_pairs(line_at(kExcess, v));
      }
    }
    for (int64_t part = 0; part < parts_of(steps); ++part) {
      const char *left = a + part * kPartBytes, *right = b + part * kPartBytes;
      const int64_t pairs = pairs_of(steps - part * kDepthPart);
      if constexpr (kExchanged<R>)
        add_exchanged(whole, left, right, distance, pairs);
      else
        add_lines(whole, left, right, distance, pairs);
    }
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      const Line right_steps = load(reinterpret_cast<const float*>(line_at(kSteps, v)));
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i)
        sum[i][v] += (Line)_mm512_maskz_cvtepi32_ps(0xffff, (__m512i)whole[i][v]) * right_steps;
    }
  } else {
    add_lines(sum, a, b, distance, pairs_of(steps));
  }
}

// Store sums or add them to memory. Whole: all lanes of the last tile.
template <bool Add, bool Whole, int R, int V>
CAVS_INLINE void put_sums(Line (&sum)[R][V], float* to, int64_t stride, int tail) {
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i, to += stride) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      float* line = to + v * kLines;
      if (Whole || v < V - 1) {
        if (Add) sum[i][v] += load(line);
        store(line, sum[i][v]);
      } else {
        if (Add) sum[i][v] += load_partial(line, tail);
        store_partial(line, sum[i][v], tail);
      }
    }
  }
}

// R rows of left strips from `first` on with V right tiles, whose strips are `distance` bytes from
// each other, and the steps of the left rows. An element is summed in one order for any R and V.
template <int R, int V>
__attribute__((noinline)) void multiply_pairs(const char* a, const float* left_steps, int64_t first,
                                              const char* b, int64_t distance, int64_t steps,
                                              const Result& c) {
  Line sum[R][V];
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      sum[i][v] = Line{};
      // C is touched once, at the end: its lines come from L2 while the sum runs, and to L2 while
      // the two strips before them are summed.
      const float* line = c.data + i * c.stride + v * kLines;
      __builtin_prefetch(line, 1);
      __builtin_prefetch(line + 2 * kStrip, 1, 2);
    }
  }
  const char* excess = a + kExcess + first * 4;
  a += first * kLineBytes;
  left_steps += first;
  const bool any = steps > 0;  // without any, there are no steps of rows
  for (; steps > 0; steps -= kDepthUnit) {
    add_unit(sum, a, excess, b, distance, steps);
    a += kUnitBytes, excess += kUnitBytes, b += kUnitBytes;
  }
  if (kIntegers && any) {
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
      const Line of_row = broadcast(left_steps[i]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sum[i][v] *= of_row;
    }
  }
  // Read again: addresses kept from above would take registers from the sums.
  const Result* to = &c;
  asm("" : "+r"(to));
  const int tail = static_cast<int>(to->cols) - (V - 1) * static_cast<int>(kLines);
  if (tail == kLines && to->accumulate)
    put_sums<true, true>(sum, to->data, to->stride, tail);
  else if (tail == kLines)
    put_sums<false, true>(sum, to->data, to->stride, tail);
  else if (to->accumulate)
    put_sums<true, false>(sum, to->data, to->stride, tail);
  else
    put_sums<false, false>(sum, to->data, to->stride, tail);
}

template <int R, int V>
CAVS_INLINE void multiply_rows(const char* a, const float* left_steps, int64_t first, const char* b,
                               int64_t distance, int64_t steps, const Result& c) {
  if constexpr (R > 1) {
    if (c.rows < R) return multiply_rows<R - 1, V>(a, left_steps, first, b, distance, steps, c);
  }
  multiply_pairs<R, V>(a, left_steps, first, b, distance, steps, c);
}

// Number of whole right strips that a left strip of few rows takes at once: fewer sums would wait
// for each other.
constexpr int kRowsOfTwo = kWinograd ? 2 : kSums / 4, kRowsOfFour = kSums / 8;
CAVS_INLINE int64_t strips_together(int64_t rows) {
  return rows <= kRowsOfFour ? 4 : rows <= kRowsOfTwo ? 2 : 1;
}
CAVS_INLINE void multiply_side_by_side(Unit&, const char* a, const char* b, int64_t distance,
                                       int64_t steps, const Result& c) {
  const auto* left_steps = reinterpret_cast<const float*>(a + kSteps);
  if (c.rows <= kRowsOfFour)
    multiply_rows<kRowsOfFour, 8>(a, left_steps, 0, b, distance, steps, c);
  else
    multiply_rows<kRowsOfTwo, 4>(a, left_steps, 0, b, distance, steps, c);
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
