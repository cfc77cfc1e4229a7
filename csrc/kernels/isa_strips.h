// How products of narrow numbers lay their factors out: bfloat16, of which a number is one or two
// pieces (CAVS_PIECES), or integers of 16 bits (CAVS_INTEGERS). Each has an object of its own.
#pragma once

#include "kernels/isa_source.h"
#include "kernels/isa_transpose.h"

namespace cavs::CAVS_ISA {
namespace {

// A tile: 16 lines of 16 pairs of numbers of 16 bits, of 32 steps of the sum. Line i of a left
// operand is its row i, pair j its numbers j and j + 16; line j of a right one its rows j and
// j + 16, pair i its column i. The last steps, n < 32, are pairs of j and j + n / 2, then zeros. A
// strip is 32 rows of a left or columns of a right operand: for each 32 steps, a part, the tile of
// its first 16, that of what is left of them if there is one, and those of the last 16. A unit is a
// part, of integers two, and what one stands for in each of the 32, and its excess (kWinograd).
#ifdef CAVS_INTEGERS
constexpr bool kIntegers = true;
#else
constexpr bool kIntegers = false;
#endif
#ifdef CAVS_WINOGRAD
constexpr bool kWinograd = true;
#else
constexpr bool kWinograd = false;
#endif
constexpr bool kTwo = CAVS_PIECES == 2;
constexpr int64_t kLineBytes = 64, kLines = 16, kDepthPart = 32, kStrip = 32;
constexpr int64_t kParts = kIntegers ? 2 : 1, kDepthUnit = kParts * kDepthPart;
constexpr int64_t kTileBytes = kLines * kLineBytes, kRest = kTileBytes;
constexpr int64_t kSecond = CAVS_PIECES * kTileBytes, kPartBytes = 2 * kSecond;
constexpr int64_t kSteps = kParts * kPartBytes, kExcess = kSteps + kStrip * 4;
constexpr int64_t kUnitBytes = kSteps + (kIntegers + kWinograd) * kStrip * 4;

CAVS_INLINE int64_t units_of(int64_t k) { return ceil_div(k, kDepthUnit); }
// Of a unit and of a part, of which so many steps or more are left.
CAVS_INLINE int64_t parts_of(int64_t steps) { return smaller(ceil_div(steps, kDepthPart), kParts); }
CAVS_INLINE int64_t pairs_of(int64_t steps) { return smaller(ceil_div(steps, 2), kLines); }

using Line = Vector<float>;
using Bits = VectorTypes<float>::UnsignedVector;

// The numbers of a tile before they are rounded: pair i of line t is x[t][i] and y[t][i].
struct Tile {
  Line x[kLines], y[kLines];
};
// Those of the parts of a unit.
struct Tiles {
  Tile part[kParts];
  int64_t parts;
};

// Lanes [0, n) of memory, zeros above; any n.
CAVS_INLINE Line load_up_to(const float* p, int64_t n) {
  if (n >= kLines) return load(p);
  return n > 0 ? load_partial(p, static_cast<int>(n)) : Line{};
}

CAVS_INLINE char* aligned(void* p) {
  return reinterpret_cast<char*>(round_up(reinterpret_cast<intptr_t>(p), kLineBytes));
}

// Where line `i` of 32 of a part lies.
CAVS_INLINE char* line_of(char* part, int64_t i) {
  return part + i / kLines * kSecond + i % kLines * kLineBytes;
}

// Where a product of strips goes.
struct Result {
  float* data;
  int64_t stride, rows, cols;
  bool accumulate;
};

}  // namespace
}  // namespace cavs::CAVS_ISA
