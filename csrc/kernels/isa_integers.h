// Numbers as integers of 16 bits times a step: dynamic fixed point (Das et al. 2018, "Mixed
// Precision Training of Convolutional Neural Networks using Integer Operations"), with steps from
// norms instead of maxima, so that a sum uses all its 32 bits: by the Cauchy-Schwarz inequality it
// never overflows. A right operand has a step for each unit of a column. A left operand has a step
// for each row, stored in its first unit: a sum is multiplied by it once, at the end.
#pragma once

#include "kernels/isa_strips.h"

namespace cavs::CAVS_ISA {
namespace {

static_assert(!kTwo, "four products would take longer than one of float32");

// Upper limit of the norm of a unit's integers, a little below the square root of 2^31 because each
// is rounded, and of the largest integer: 16 bits hold the sum of two.
constexpr float kNorm = 46325, kLargest = 16380;
// Smallest step: squares of smaller numbers could underflow. Numbers below half of it become 0.
constexpr float kLeastStep = 1e-22f;

// Inline assembly, because gcc 12 copies every sum where it knows the instruction.
CAVS_INLINE Bits add_pairs(Bits sum, Bits x, Bits y) {
  asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y));
  return sum;
}

// Square of a step, from the squared norm of a unit's numbers and the largest of their squares. NaN
// yields a step of NaN.
CAVS_INLINE Line squared_step(Line norm, Line largest) {
  return maximum<float>(norm * broadcast(1 / (kNorm * kNorm)),
                        largest * broadcast(1 / (kLargest * kLargest)));
}
CAVS_INLINE Line steps_of(Line squared) {
  return greater_or_second<float>(broadcast(kLeastStep), square_root<float>(squared));
}
// Masked forms as in isa_vector.h.
CAVS_INLINE Bits integers(Line x, Line y, Line inverse) {
  const auto rounded = [&](Line v) {
    return (Bits)_mm512_maskz_cvtps_epi32(0xffff, (__m512)(v * inverse));
  };
  return (rounded(x) & 0xffffu) | rounded(y) << 16;
}

// Sum of 16 lines, lane by lane.
CAVS_INLINE Line sum_lines(Line (&lines)[kLines]) {
  for (int64_t half = kLines / 2; half > 0; half /= 2)
    for (int64_t t = 0; t < half; ++t) lines[t] += lines[t + half];
  return lines[0];
}
// Squared step for each lane of a unit's tiles.
CAVS_INLINE Line squared_steps(const Tiles& tiles) {
  Line norm{}, largest{};
  for (int64_t part = 0; part < tiles.parts; ++part) {
    const Tile& tile = tiles.part[part];
    Line lines[kLines];
    for (int64_t t = 0; t < kLines; ++t) {
      const Line x = tile.x[t] * tile.x[t], y = tile.y[t] * tile.y[t];
      lines[t] = x + y;
      largest = greater_or_second<float>(largest, greater_or_second<float>(x, y));
    }
    norm += sum_lines(lines);
  }
  return squared_step(norm, largest);
}

// Location of the steps of 32 rows or columns (a left strip stores them in its first unit), and of
// the excess of a unit.
CAVS_INLINE float* steps_in(char* unit) { return reinterpret_cast<float*>(unit + kSteps); }
CAVS_INLINE Bits& excess_in(char* unit, int64_t half) {
  return reinterpret_cast<Bits*>(unit + kExcess)[half];
}

// The step of row `line` of a left strip, accumulated over all its parts.
class Measure {
 public:
  CAVS_INLINE void add(Line x, Line y, bool end_of_unit) {
    const Line first = x * x, second = y * y;
    largest_ = greater_or_second<float>(largest_, greater_or_second<float>(first, second));
    unit_ += first + second;
    if (!end_of_unit) return;
    norm_ = maximum<float>(sum_of_lanes<float>(unit_), norm_);
    unit_ = Line{};
  }
  // Return the number of steps that are 1.
  CAVS_INLINE float end(char* strip, int64_t line) {
    const float step = steps_of(squared_step(norm_, max_of_lanes<float>(largest_)))[0];
    steps_in(strip)[line] = step;
    return 1 / step;
  }

 private:
  Line unit_{}, norm_{}, largest_{};
};

// The same for 32 rows in the lanes of tiles: squares of steps until the end.
CAVS_INLINE void begin_measuring(char* strip) { fill(steps_in(strip), 0.0f, kStrip); }
CAVS_INLINE void measure_tiles(const Tiles& tiles, char* strip, int64_t half) {
  Line& most = reinterpret_cast<Line*>(steps_in(strip))[half];
  most = maximum<float>(squared_steps(tiles), most);
}
CAVS_INLINE void end_measuring(char* strip) {
  auto* steps = reinterpret_cast<Line*>(steps_in(strip));
  for (int64_t half = 0; half < 2; ++half) steps[half] = steps_of(steps[half]);
}
CAVS_INLINE Line inverse_steps(char* strip, int64_t half) {
  return broadcast(1.0f) / load(steps_in(strip) + half * kLines);
}

// Store a line of a left operand.
CAVS_INLINE void put_line(Line x, Line y, char* part, int64_t line, float inverse) {
  *reinterpret_cast<Bits*>(line_of(part, line)) = integers(x, y, broadcast(inverse));
}
// Excess: the products of pairs j and j + 1, negated, for each row or column; see add_exchanged.
// Store it for rows [0, rows) of a left strip that was stored line by line:
CAVS_INLINE void put_excess(char* unit, int64_t parts, int64_t rows) {
  if (!kWinograd) return;
  for (int64_t half = 0; half * kLines < rows; ++half) {
    Line lines[kLines];
    for (int64_t t = 0; t < kLines; ++t) {
      Bits sum{};
      for (int64_t part = 0; part < parts; ++part) {
        const char* at = line_of(unit + part * kPartBytes, half * kLines + t);
        const Bits pairs = *reinterpret_cast<const Bits*>(at);
        constexpr __mmask16 even = 0x5555;
        const auto next = _mm512_maskz_shuffle_epi32(even, (__m512i)pairs, _MM_PERM_CDAB);
        sum = add_pairs(sum, pairs, (Bits)next);
      }
      lines[t] = (Line)sum;
    }
    transpose<float>(lines);
    Bits excess{};
    for (int64_t t = 0; t < kLines; t += 2) excess -= (Bits)lines[t];
    excess_in(unit, half) = excess;
  }
}

// Store half of a unit, from lines of a right operand. Exchange: swap pairs for a left operand.
template <bool Exchange>
CAVS_INLINE void put_tiles(const Tiles& tiles, char* unit, int64_t half, Line inverse) {
  Bits excess{};
  for (int64_t part = 0; part < tiles.parts; ++part) {
    const Tile& tile = tiles.part[part];
    Line pairs[kLines];
    for (int64_t t = 0; t < kLines; ++t) pairs[t] = (Line)integers(tile.x[t], tile.y[t], inverse);
    for (int64_t t = 0; kWinograd && t < kLines; t += 2)
      excess = add_pairs(excess, (Bits)pairs[t], (Bits)pairs[t + 1]);
    if constexpr (Exchange) transpose<float>(pairs);
    auto* out = reinterpret_cast<Bits*>(unit + part * kPartBytes +
                                        half * kSecond);  // the type it is read as
    for (int64_t t = 0; t < kLines; ++t) out[t] = (Bits)pairs[t];
  }
  if (kWinograd) excess_in(unit, half) = Bits{} - excess;
}
CAVS_INLINE void put_left(const Tiles& tiles, char* unit, int64_t half, Line inverse) {
  put_tiles<true>(tiles, unit, half, inverse);
}
CAVS_INLINE Line right_steps(const Tiles& tiles) { return steps_of(squared_steps(tiles)); }
CAVS_INLINE void put_right(const Tiles& tiles, char* unit, int64_t half, Line steps) {
  put_tiles<false>(tiles, unit, half, broadcast(1.0f) / steps);
  reinterpret_cast<Line*>(steps_in(unit))[half] = steps;
}

}  // namespace
}  // namespace cavs::CAVS_ISA
