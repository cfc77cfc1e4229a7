// Numbers as integers of 16 bits times a step: dynamic fixed point (Das et al. 2018, "Mixed
// Precision Training of Convolutional Neural Networks using Integer Operations", section 4), with
// steps from norms instead of maxima, so that no bit of the 32 that a sum has stays unused: by
// Cauchy and Schwarz it never overflows. A right operand has a step for each unit of a column; a
// left one has one for each row, which its first unit holds, since a sum must pass through it but
// once.
#pragma once

#include "kernels/isa_strips.h"

namespace cavs::CAVS_ISA {
namespace {

static_assert(!kTwo, "four products would take longer than one of float32");

// The norm of 32 integers, a little below the square root of 2^31, as each is rounded; the same
// where one of them is so large a part of it, in squares, that it would not fit 16 bits.
constexpr float kNorm = 46330, kNormOfOne = 32760, kLargePart = 0.49f;
constexpr float kLonger = (kNorm / kNormOfOne) * (kNorm / kNormOfOne);
// Steps of what is smaller, all of whose integers are 0: its squares could underflow.
constexpr float kLeastStep = 1e-22f;

// What is no number makes a step that is none. Masked forms as in isa_vector.h.
CAVS_INLINE Line steps_of(Line squares) {
  return greater_or_second<float>(broadcast(kLeastStep),
                                  square_root<float>(squares) * broadcast(1 / kNorm));
}
CAVS_INLINE Bits integers(Line x, Line y, Line inverse) {
  const auto rounded = [&](Line v) {
    return (Bits)_mm512_maskz_cvtps_epi32(0xffff, (__m512)(v * inverse));
  };
  return (rounded(x) & 0xffffu) | rounded(y) << 16;
}

// The squared norm of the pairs of one row or column of a unit, larger where one has a large part.
CAVS_INLINE float squares_along_lanes(Line x, Line y) {
  const Line first = x * x, second = y * y;
  const float sum = lane_sum<float>(first + second);
  const Line bound = broadcast(kLargePart * sum), most = greater_or_second<float>(first, second);
  const bool large = _mm512_cmp_ps_mask((__m512)most, (__m512)bound, _CMP_GT_OQ) != 0;
  return large ? sum * kLonger : sum;
}
// The same of those of 16, in the lanes, in the same order.
CAVS_INLINE Line squares_along_lines(const Tile& tile) {
  Line sum[kLines], most{};
  for (int64_t t = 0; t < kLines; ++t) {
    const Line first = tile.x[t] * tile.x[t], second = tile.y[t] * tile.y[t];
    sum[t] = first + second;
    most = greater_or_second<float>(most, greater_or_second<float>(first, second));
  }
  for (int64_t half = kLines / 2; half > 0; half /= 2)
    for (int64_t t = 0; t < half; ++t) sum[t] += sum[t + half];
  return most > kLargePart * sum[0] ? sum[0] * kLonger : sum[0];
}

// Where the steps of 32 rows or columns lie: those of a left strip in its first unit.
CAVS_INLINE float* steps_in(char* unit) { return reinterpret_cast<float*>(unit + kSteps); }

CAVS_INLINE void store_pairs(Line (&pairs)[kLines], char* unit, int64_t half) {
  auto* out = reinterpret_cast<Line*>(unit + half * kSecond);
  for (int64_t t = 0; t < kLines; ++t) out[t] = pairs[t];
}

// The largest norms of the units of a left strip's rows are found first, squared.
CAVS_INLINE void begin_measuring(char* strip) { fill(steps_in(strip), 0.0f, kStrip); }
CAVS_INLINE void measure_line(Line x, Line y, char* strip, int64_t line) {
  float& most = steps_in(strip)[line];
  most = greater(squares_along_lanes(x, y), most);
}
CAVS_INLINE void measure_tile(const Tile& tile, char* strip, int64_t half) {
  Line& most = reinterpret_cast<Line*>(steps_in(strip))[half];
  most = maximum<float>(squares_along_lines(tile), most);
}
CAVS_INLINE void end_measuring(char* strip) {
  auto* steps = reinterpret_cast<Line*>(steps_in(strip));
  steps[0] = steps_of(steps[0]);
  steps[1] = steps_of(steps[1]);
}

CAVS_INLINE Line inverse_steps(char* strip, int64_t half) {
  return broadcast(1.0f) / load(steps_in(strip) + half * kLines);
}

// A line of a left operand.
CAVS_INLINE void put_line(Line x, Line y, char* unit, int64_t line, float inverse) {
  *reinterpret_cast<Bits*>(line_of(unit, line)) = integers(x, y, broadcast(inverse));
}
// Half of a unit of a left operand, of lines of a right one.
CAVS_INLINE void put_left(const Tile& tile, char* unit, int64_t half, Line inverse) {
  Line pairs[kLines];
  for (int64_t t = 0; t < kLines; ++t) pairs[t] = (Line)integers(tile.x[t], tile.y[t], inverse);
  transpose<float>(pairs);
  store_pairs(pairs, unit, half);
}
// Half of a unit of a right operand. ByColumn: its columns are given as lines.
template <bool ByColumn>
CAVS_INLINE void put_right(const Tile& tile, char* unit, int64_t half) {
  Line pairs[kLines], squares;
  if constexpr (ByColumn)
    for (int64_t t = 0; t < kLines; ++t) squares[t] = squares_along_lanes(tile.x[t], tile.y[t]);
  else
    squares = squares_along_lines(tile);
  const Line steps = steps_of(squares), inverse = broadcast(1.0f) / steps;
  for (int64_t t = 0; t < kLines; ++t)
    pairs[t] = (Line)integers(tile.x[t], tile.y[t], ByColumn ? broadcast(inverse[t]) : inverse);
  if constexpr (ByColumn) transpose<float>(pairs);
  store_pairs(pairs, unit, half);
  reinterpret_cast<Line*>(steps_in(unit))[half] = steps;
}

}  // namespace
}  // namespace cavs::CAVS_ISA
