// Products of float32 on the matrix unit of processors with AMX, which multiplies bfloat16 and adds
// in float32, 16 times as many a cycle. A number is one piece, the nearest bfloat16, or two: what
// is left of it, too, together its first 16 bits. Of two, three of the four products of pieces are
// added; the fourth is left out, 2^-16 at most (Henry, Tang and Heinecke 2019, "Leveraging the
// bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations").
// CAVS_PIECES is their number: each has an object of its own.
#pragma once

#include "kernels/isa_tile.h"
#include "kernels/isa_transpose.h"

namespace cavs::CAVS_ISA {
namespace {

// A tile: 16 lines of 16 pairs of bfloat16, of 32 steps of the sum. Line i of a left operand is its
// row i, pair j its numbers j and j + 16; line j of a right one its rows j and j + 16, pair i its
// column i. A strip is 32 rows of a left or columns of a right operand: for each 32 steps the tile
// of its first 16, that of what is left of them if there is one, and those of the last 16.
constexpr bool kTwo = CAVS_PIECES == 2;
constexpr int64_t kLines = 16, kDepthUnit = 32, kStrip = 32;
constexpr int64_t kTileBytes = kLines * kLineBytes, kRest = kTileBytes;
constexpr int64_t kSecond = CAVS_PIECES * kTileBytes, kUnitBytes = 2 * kSecond;

CAVS_INLINE int64_t units_of(int64_t k) { return ceil_div(k, kDepthUnit); }

using Line = Vector<float>;
using Bits = VectorTypes<float>::UnsignedVector;

// Sixteen pairs as a line of each of the tiles: the nearest bfloat16, and that of what is left, in
// which infinity becomes a NaN. Masked forms as in isa_vector.h.
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
CAVS_INLINE void put_line(Line x, Line y, char* line) {
  auto* out = reinterpret_cast<Bits*>(line);
  Bits rest;
  split(x, y, out[0], rest);
  if (kTwo) out[kRest / kLineBytes] = rest;
}

// Lanes [0, n) of memory, zeros above; any n.
CAVS_INLINE Line load_up_to(const float* p, int64_t n) {
  if (n >= kLines) return load(p);
  return n > 0 ? load_partial(p, static_cast<int>(n)) : Line{};
}

// The unit's registers are this thread's while one of these lives. Tiles 0 to 3 hold sums, 4 and 5
// left operands, 6 and 7 right ones.
class Unit {
 public:
  Unit() = default;
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;
  ~Unit() { asm volatile("tilerelease"); }

  // Sums of rows x cols in 2 x 2 tiles, the second row in the odd ones.
  CAVS_INLINE void shape(int64_t rows, int64_t cols) {
    if (rows == rows_ && cols == cols_) return;
    rows_ = rows, cols_ = cols;
    const uint8_t r[] = {of(rows, 0), of(rows, 1)}, c[] = {of(cols, 0), of(cols, 1)};
    configure({r[0], r[1], r[0], r[1], r[0], r[1], kLines, kLines},
              {c[0], c[0], c[1], c[1], kLines, kLines, c[0], c[1]});
  }
  // Sums of rows x cols in one row of two tiles, or of four, all of whose columns are used.
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
  // Of n in tiles of 16, those in tile i; an unused tile has one.
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

// Where a product goes.
struct Result {
  float* data;
  int64_t stride, rows, cols;
  bool accumulate;
};

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

// The product of a left strip of 17 to 32 rows and a right one. Elements are summed in this order
// wherever they lie: small products first.
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
CAVS_INLINE void multiply_strips(Unit& unit, const char* a, const char* b, int64_t units,
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

// The same of a left strip of 1 to 16 rows with a right strip of one or two tiles, or with two
// whole ones, `apart` bytes from each other.
template <int Tiles>
CAVS_INLINE void multiply_flat(Unit& unit, const char* a, const char* b, int64_t apart,
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
    if constexpr (Tiles == 4) strip.template operator()<2>(b + apart);
  }
  end_sum<0>(c, 0, 0);
  if constexpr (both) end_sum<1>(c, 0, kLines);
  if constexpr (Tiles == 4) end_sum<2>(c, 0, 2 * kLines);
  if constexpr (Tiles == 4) end_sum<3>(c, 0, 3 * kLines);
}

// Of strips of any number of rows and columns.
__attribute__((noinline)) void multiply_any(Unit& unit, const char* a, const char* b, int64_t units,
                                            float* data, int64_t stride, int64_t rows, int64_t cols,
                                            bool accumulate) {
  const Result c{data, stride, rows, cols, accumulate};
  if (c.rows > kLines && c.cols > kLines) {
    multiply_strips<true>(unit, a, b, units, c);
  } else if (c.rows > kLines) {
    multiply_strips<false>(unit, a, b, units, c);
  } else if (c.cols > kLines) {
    multiply_flat<2>(unit, a, b, 0, units, c);
  } else {
    multiply_flat<1>(unit, a, b, 0, units, c);
  }
}

CAVS_INLINE char* aligned(void* p) {
  return reinterpret_cast<char*>(round_up(reinterpret_cast<intptr_t>(p), kLineBytes));
}

}  // namespace
}  // namespace cavs::CAVS_ISA
