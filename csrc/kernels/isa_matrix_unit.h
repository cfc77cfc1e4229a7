// Products of strips on the matrix unit of processors with AMX, which multiplies bfloat16 and adds
// in float32, 16 times as many per cycle.
#pragma once

#include "kernels/isa_split.h"

namespace cavs::CAVS_ISA {
namespace {

// Rows that are added to a large gradient at once: each time it is read and written.
constexpr int64_t kRowsOfLarge = 512;

// Holds the registers of the unit for this thread. Tiles 0 to 3 hold sums, 4 and 5 left operands, 6
// and 7 right operands.
class Unit {
 public:
  Unit() = default;
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;
  ~Unit() { asm volatile("tilerelease"); }

  // Sums of rows x cols in 2 x 2 tiles, the second row in the odd tiles.
  CAVS_INLINE void shape(int64_t rows, int64_t cols) {
    if (rows == rows_ && cols == cols_) return;
    rows_ = rows, cols_ = cols;
    const uint8_t r[] = {of(rows, 0), of(rows, 1)}, c[] = {of(cols, 0), of(cols, 1)};
    configure({r[0], r[1], r[0], r[1], r[0], r[1], kLines, kLines},
              {c[0], c[0], c[1], c[1], kLines, kLines, c[0], c[1]});
  }
  // Sums of rows x cols in one row of two tiles, or of four if all of their columns are used.
  CAVS_INLINE void flat_shape(int64_t rows, int64_t cols) {
    if (rows == rows_ && cols == -cols_) return;
    rows_ = rows, cols_ = -cols;
    const uint8_t r = of(rows, 0), c[] = {of(cols, 0), of(cols, 1), of(cols, 2), of(cols, 3)};
    configure({r, r, r, r, r, r, kLines, kLines},
              {c[0], c[1], c[2], c[3], kLines, kLines, c[0], c[1]});
  }

 private:
  struct Bytes {
    uint8_t of[8];
  };
  // Number of n rows or columns that are in tile i of 16; an unused tile has one.
  static CAVS_INLINE uint8_t of(int64_t n, int64_t i) {
    return static_cast<uint8_t>(larger(smaller(n - i * kLines, kLines), 1));
  }
  void configure(Bytes lines, Bytes columns) {
    struct alignas(64) {
      uint8_t palette, start, reserved[14];
      uint16_t bytes[16];
      uint8_t lines[16];
    } config = {};
    config.palette = 1;
    for (int i = 0; i < 8; ++i) {
      config.lines[i] = lines.of[i];
      config.bytes[i] = static_cast<uint16_t>(4 * columns.of[i]);
    }
    asm volatile("ldtilecfg %0" : : "m"(config));
  }

  int64_t rows_ = 0, cols_ = 0;
};

template <int Tile>
CAVS_INLINE void load_tile(const void* p, int64_t stride = kLineBytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(Tile) : "memory");
}
template <int Tile>
CAVS_INLINE void store_tile(void* p, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(Tile) : "memory");
}
template <int Tile>
CAVS_INLINE void clear_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(Tile));
}
template <int Sum, int Left, int Right>
CAVS_INLINE void multiply_add() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sum), "i"(Left), "i"(Right));
}

template <int Tile>
CAVS_INLINE void begin_sum(const Result& c, int64_t i, int64_t j) {
  if (c.accumulate)
    load_tile<Tile>(c.data + i * c.stride + j, c.stride * 4);
  else
    clear_tile<Tile>();
}
template <int Tile>
CAVS_INLINE void end_sum(const Result& c, int64_t i, int64_t j) {
  store_tile<Tile>(c.data + i * c.stride + j, c.stride * 4);
}

// Product of a left strip of 17 to 32 rows and a right strip. Elements are summed in this order
// wherever they are: small products first.
template <bool Wide>
CAVS_INLINE void sum_strips(const char* a, const char* b, int64_t units) {
  const auto multiply = [] {
    multiply_add<0, 4, 6>();
    multiply_add<1, 5, 6>();
    if constexpr (Wide) multiply_add<2, 4, 7>();
    if constexpr (Wide) multiply_add<3, 5, 7>();
  };
  for (; units > 0; --units, a += kUnitBytes, b += kUnitBytes) {
    if constexpr (kTwo) load_tile<4>(a + kRest);
    if constexpr (kTwo) load_tile<5>(a + kSecond + kRest);
    load_tile<6>(b);
    if constexpr (Wide) load_tile<7>(b + kSecond);
    if constexpr (kTwo) multiply();
    load_tile<4>(a);
    load_tile<5>(a + kSecond);
    multiply();
    if constexpr (!kTwo) continue;
    load_tile<6>(b + kRest);
    if constexpr (Wide) load_tile<7>(b + kSecond + kRest);
    multiply();
  }
}
template <bool Wide>
CAVS_INLINE void multiply_tall(Unit& unit, const char* a, const char* b, int64_t units,
                               const Result& c) {
  unit.shape(c.rows, c.cols);
  begin_sum<0>(c, 0, 0);
  begin_sum<1>(c, kLines, 0);
  if constexpr (Wide) begin_sum<2>(c, 0, kLines);
  if constexpr (Wide) begin_sum<3>(c, kLines, kLines);
  sum_strips<Wide>(a, b, units);
  end_sum<0>(c, 0, 0);
  end_sum<1>(c, kLines, 0);
  if constexpr (Wide) end_sum<2>(c, 0, kLines);
  if constexpr (Wide) end_sum<3>(c, kLines, kLines);
}

// The same for a left strip of 1 to 16 rows with a right strip of one or two tiles, or with two
// whole strips, `distance` bytes from each other.
template <int Tiles>
CAVS_INLINE void multiply_flat(Unit& unit, const char* a, const char* b, int64_t distance,
                               int64_t units, const Result& c) {
  static_assert(Tiles == 1 || Tiles == 2 || Tiles == 4);
  constexpr bool both = Tiles > 1;
  unit.flat_shape(c.rows, c.cols);
  begin_sum<0>(c, 0, 0);
  if constexpr (both) begin_sum<1>(c, 0, kLines);
  if constexpr (Tiles == 4) begin_sum<2>(c, 0, 2 * kLines);
  if constexpr (Tiles == 4) begin_sum<3>(c, 0, 3 * kLines);
  for (; units > 0; --units, a += kUnitBytes, b += kUnitBytes) {
    load_tile<4>(a);
    if constexpr (kTwo) load_tile<5>(a + kRest);
    const auto strip = [&]<int First>(const char* right) {
      const auto multiply = [&]<int Left>() {
        multiply_add<First, Left, 6>();
        if constexpr (both) multiply_add<First + 1, Left, 7>();
      };
      load_tile<6>(right);
      if constexpr (both) load_tile<7>(right + kSecond);
      if constexpr (kTwo) multiply.template operator()<5>();
      multiply.template operator()<4>();
      if constexpr (!kTwo) return;
      load_tile<6>(right + kRest);
      if constexpr (both) load_tile<7>(right + kSecond + kRest);
      multiply.template operator()<4>();
    };
    strip.template operator()<0>(b);
    if constexpr (Tiles == 4) strip.template operator()<2>(b + distance);
  }
  end_sum<0>(c, 0, 0);
  if constexpr (both) end_sum<1>(c, 0, kLines);
  if constexpr (Tiles == 4) end_sum<2>(c, 0, 2 * kLines);
  if constexpr (Tiles == 4) end_sum<3>(c, 0, 3 * kLines);
}

// Number of whole right strips that a left strip of few rows takes at once.
CAVS_INLINE int64_t strips_together(int64_t rows) { return rows <= kLines ? 2 : 1; }
CAVS_INLINE void multiply_side_by_side(Unit& unit, const char* a, const char* b, int64_t distance,
                                       int64_t steps, const Result& c) {
  multiply_flat<4>(unit, a, b, distance, units_of(steps), c);
}

// Strips of any number of rows and columns.
__attribute__((noinline)) void multiply_strips(Unit& unit, const char* a, const char* b,
                                               int64_t steps, const Result& c) {
  const int64_t units = units_of(steps);
  if (c.rows > kLines && c.cols > kLines) {
    multiply_tall<true>(unit, a, b, units, c);
  } else if (c.rows > kLines) {
    multiply_tall<false>(unit, a, b, units, c);
  } else if (c.cols > kLines) {
    multiply_flat<2>(unit, a, b, 0, units, c);
  } else {
    multiply_flat<1>(unit, a, b, 0, units, c);
  }
}

}  // namespace
}  // namespace cavs::CAVS_ISA
