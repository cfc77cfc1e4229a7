// Numbers as bfloat16: one piece, the nearest bfloat16, or two, also the nearest to the remainder,
// together the first 16 bits. With two, three of the four products of pieces are added; the fourth
// is left out, 2^-16 at most (Henry, Tang and Heinecke 2019, "Leveraging the bfloat16 Artificial
// Intelligence Datatype For Higher-Precision Computations").
#pragma once

#include "kernels/isa_strips.h"

namespace cavs::CAVS_ISA {
namespace {

// Sixteen pairs: the nearest bfloat16 and that of the remainder, in which infinity becomes NaN.
// Masked forms as in isa_vector.h.
CAVS_INLINE void split(Line x, Line y, Bits& nearest, Bits& rest) {
  constexpr __mmask32 all = 0xffffffffu;
  constexpr uint32_t kHigh = 0xffff0000u;
  const Bits pairs = ((Bits)iota<float>() + 16u) << 16 | (Bits)iota<float>();  // halves
  const auto rounded = [&](Line first, Line second) {
    const auto halves = (__m512i)_mm512_maskz_cvtne2ps_pbh(all, second, first);
    return (Bits)_mm512_maskz_permutexvar_epi16(all, (__m512i)pairs, halves);
  };
  nearest = rounded(x, y);
  if (kTwo) rest = rounded(x - (Line)(nearest << 16), y - (Line)(nearest & kHigh));
}

// Each number is rounded independently: no steps of a left strip are measured.
CAVS_INLINE void begin_measuring(char*) {}
CAVS_INLINE void measure_tiles(const Tiles&, char*, int64_t) {}
CAVS_INLINE void end_measuring(char*) {}
CAVS_INLINE Line inverse_steps(const char*, int64_t) { return broadcast(1.0f); }

struct Measure {
  CAVS_INLINE void add(Line, Line, bool) {}
  CAVS_INLINE float end(char*, int64_t) { return 1; }
};

// Store a line of each of the tiles.
CAVS_INLINE void put_line(Line x, Line y, char* part, int64_t line, float) {
  auto* out = reinterpret_cast<Bits*>(line_of(part, line));
  Bits rest;
  split(x, y, out[0], rest);
  if (kTwo) out[kRest / kLineBytes] = rest;
}

CAVS_INLINE void put_excess(char*, int64_t, int64_t) {}

// Store all lines of the tiles of one half of a unit. Exchange: swap pairs of a right operand for a
// left one.
template <bool Exchange>
CAVS_INLINE void put_tile(const Tile& tile, char* unit, int64_t half) {
  Line nearest[kLines], rests[kLines];
  for (int64_t t = 0; t < kLines; ++t) {
    Bits first, second{};
    split(tile.x[t], tile.y[t], first, second);
    nearest[t] = (Line)first;
    if constexpr (kTwo) rests[t] = (Line)second;
  }
  if constexpr (Exchange) transpose<float>(nearest);
  if constexpr (Exchange && kTwo) transpose<float>(rests);
  auto* out = reinterpret_cast<Bits*>(unit + half * kSecond);  // the type they are read as
  for (int64_t t = 0; t < kLines; ++t) out[t] = (Bits)nearest[t];
  if constexpr (!kTwo) return;
  for (int64_t t = 0; t < kLines; ++t) out[kRest / kLineBytes + t] = (Bits)rests[t];
}
CAVS_INLINE void put_left(const Tiles& tiles, char* unit, int64_t half, Line) {
  put_tile<true>(tiles.part[0], unit, half);
}
CAVS_INLINE Line right_steps(const Tiles&) { return Line{}; }
CAVS_INLINE void put_right(const Tiles& tiles, char* unit, int64_t half, Line) {
  put_tile<false>(tiles.part[0], unit, half);
}

}  // namespace
}  // namespace cavs::CAVS_ISA
