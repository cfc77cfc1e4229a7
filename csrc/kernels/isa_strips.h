// Layout of the operands of products of narrow numbers: bfloat16, one or two pieces per number
// (CAVS_PIECES), or integers of 16 bits (CAVS_INTEGERS). Each is compiled to its own object.
#pragma once

#include "kernels/isa_source.h"
#include "kernels/isa_transpose.h"

namespace cavs::CAVS_ISA {
namespace {

// A tile has 16 lines of 16 pairs of 16-bit numbers, for 32 steps of the sum. Line i of a left tile
// is row i, with numbers j and j + 16 in pair j; line j of a right tile is rows j and j + 16, with
// column i in pair i. The last steps, n < 32, are pairs of j and j + n / 2, then zeros. A strip is
// 32 rows of a left or columns of a right operand. For every 32 steps it has a part: the tile of
// its first 16 rows or columns, the tile of their remainder if there is one, and those of the last
// 16. A unit is a part, or two of integers, followed by the 32 steps of fixed point and its excess
// (kWinograd).
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
// Steps of a unit and of a part, given the number of steps left.
CAVS_INLINE int64_t parts_of(int64_t steps) { return smaller(ceil_div(steps, kDepthPart), kParts); }
CAVS_INLINE int64_t pairs_of(int64_t steps) { return smaller(ceil_div(steps, 2), kLines); }

using Line = Vector<float>;
using Bits = VectorTypes<float>::UnsignedVector;

// The numbers of a tile before they are rounded: pair i of line t is x[t][i] and y[t][i].
struct Tile {
  Line x[kLines], y[kLines];
};
// The tiles of the parts of a unit.
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

// Address of line `i` of 32 of a part.
CAVS_INLINE char* line_of(char* part, int64_t i) {
  return part + i / kLines * kSecond + i % kLines * kLineBytes;
}

// Destination of a product of strips.
struct Result {
  float* data;
  int64_t stride, rows, cols;
  bool accumulate;
};

}  // namespace
}  // namespace cavs::CAVS_ISA
