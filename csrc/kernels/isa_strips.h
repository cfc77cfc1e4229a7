// How products of bfloat16 lay their factors out. A number is one piece, the nearest bfloat16, or
// two: what is left of it, too, together its first 16 bits. Of two, three of the four products of
// pieces are added; the fourth is left out, 2^-16 at most (Henry, Tang and Heinecke 2019,
// "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations").
// CAVS_PIECES is their number: each has an object of its own.
#pragma once

#include "kernels/isa_source.h"
#include "kernels/isa_transpose.h"

namespace cavs::CAVS_ISA {
namespace {

// A tile: 16 lines of 16 pairs of bfloat16, of 32 steps of the sum. Line i of a left operand is its
// row i, pair j its numbers j and j + 16; line j of a right one its rows j and j + 16, pair i its
// column i. The last steps, n < 32, are pairs of j and j + n / 2, then zeros. A strip is 32 rows of
// a left or columns of a right operand: for each 32 steps the tile of its first 16, that of what is
// left of them if there is one, and those of the last 16.
constexpr bool kTwo = CAVS_PIECES == 2;
constexpr int64_t kLineBytes = 64, kLines = 16, kDepthUnit = 32, kStrip = 32;
constexpr int64_t kTileBytes = kLines * kLineBytes, kRest = kTileBytes;
constexpr int64_t kSecond = CAVS_PIECES * kTileBytes, kUnitBytes = 2 * kSecond;

CAVS_INLINE int64_t units_of(int64_t k) { return ceil_div(k, kDepthUnit); }
// Of a unit, of which so many steps or more are left.
CAVS_INLINE int64_t pairs_of(int64_t steps) { return smaller(ceil_div(steps, 2), kLines); }

using Line = Vector<float>;
using Bits = VectorTypes<float>::UnsignedVector;

// Sixteen pairs: the nearest bfloat16, and that of what is left, in which infinity becomes a NaN.
// Masked forms as in isa_vector.h.
CAVS_INLINE void split(Line x, Line y, Bits& nearest, Bits& rest) {
  constexpr __mmask32 all = 0xffffffffu;
  constexpr uint32_t kHigh = 0xffff0000u;
  const Bits pairs = ((Bits)iota<float>() + 16u) << 16 | (Bits)iota<float>();  // of halves
  const auto rounded = [&](Line first, Line second) {
    const auto halves = (__m512i)_mm512_maskz_cvtne2ps_pbh(all, second, first);
    return (Bits)_mm512_maskz_permutexvar_epi16(all, (__m512i)pairs, halves);
  };
  nearest = rounded(x, y);
  if (kTwo) rest = rounded(x - (Line)(nearest << 16), y - (Line)(nearest & kHigh));
}

// A line of each of the tiles.
CAVS_INLINE void put_line(Line x, Line y, char* line) {
  auto* out = reinterpret_cast<Bits*>(line);
  Bits rest;
  split(x, y, out[0], rest);
  if (kTwo) out[kRest / kLineBytes] = rest;
}

// All lines of the tiles.
struct Tile {
  Line nearest[kLines], rest[kLines];
  CAVS_INLINE void put(int64_t line, Line x, Line y) {
    Bits first, second{};
    split(x, y, first, second);
    nearest[line] = (Line)first;
    if constexpr (kTwo) rest[line] = (Line)second;
  }
  // Pairs of a left operand for those of a right one, or the other way.
  CAVS_INLINE void exchange() {
    transpose<float>(nearest);
    if constexpr (kTwo) transpose<float>(rest);
  }
  // Of each line the halves in masks[line].
  CAVS_INLINE void merge(char* tile, const Bits (&masks)[kLines]) const {
    const auto merge = [&](Bits* to, const Line* from) {
      for (int64_t t = 0; t < kLines; ++t) to[t] = (to[t] & ~masks[t]) | ((Bits)from[t] & masks[t]);
    };
    merge(reinterpret_cast<Bits*>(tile), nearest);
    if constexpr (kTwo) merge(reinterpret_cast<Bits*>(tile + kRest), rest);
  }
  CAVS_INLINE void store(char* tile) const {
    for (int64_t t = 0; t < kLines; ++t) reinterpret_cast<Line*>(tile)[t] = nearest[t];
    if constexpr (!kTwo) return;
    for (int64_t t = 0; t < kLines; ++t) reinterpret_cast<Line*>(tile + kRest)[t] = rest[t];
  }
};

// Lanes [0, n) of memory, zeros above; any n.
CAVS_INLINE Line load_up_to(const float* p, int64_t n) {
  if (n >= kLines) return load(p);
  return n > 0 ? load_partial(p, static_cast<int>(n)) : Line{};
}

CAVS_INLINE char* aligned(void* p) {
  return reinterpret_cast<char*>(round_up(reinterpret_cast<intptr_t>(p), kLineBytes));
}

// Where a product of strips goes.
struct Result {
  float* data;
  int64_t stride, rows, cols;
  bool accumulate;
};

}  // namespace
}  // namespace cavs::CAVS_ISA
