// Products of narrow numbers, one object per instruction and type of number, compiled with the
// flags of AVX-512; the other kernels of that table are unchanged.
#include <type_traits>

#include "kernels/isa_strip_products.h"
#include "kernels/isa_table.h"

namespace cavs::CAVS_ISA {
namespace {

#ifdef CAVS_MATRIX_UNIT
constexpr const char* kName = kTwo ? "amx-bfloat16x3" : "amx-bfloat16";

int64_t multiply_adds_of_unit(int64_t iterations, float* sink) {
  alignas(64) static constexpr float zeros[kTileBytes / 4] = {};
  Unit unit;
  unit.shape(kStrip, kStrip);
  load_tile<0>(zeros), load_tile<1>(zeros), load_tile<2>(zeros), load_tile<3>(zeros);
  load_tile<4>(zeros), load_tile<5>(zeros), load_tile<6>(zeros), load_tile<7>(zeros);
  for (int64_t i = 0; i < iterations; ++i) {
    multiply_add<0, 4, 6>();
    multiply_add<1, 5, 6>();
    multiply_add<2, 4, 7>();
    multiply_add<3, 5, 7>();
  }
  sink[0] = 0;
  const int64_t each = kTwo ? 3 : 1;  // make one of float32
  return iterations * 4 * kLines * kLines * kDepthUnit / each;
}
#else
constexpr const char* kName = kWinograd   ? "avx512-int16-winograd"
                              : kIntegers ? "avx512-int16"
                                          : "avx512-bfloat16";

int64_t multiply_adds_of_unit(int64_t iterations, float* sink) {
  using Sum = std::conditional_t<kIntegers, Bits, Line>;
  Sum sum[kSums];
  for (int i = 0; i < kSums; ++i) sum[i] = (Sum)broadcast(static_cast<float>(i));
  const auto x = (Bits)broadcast(sink[0]), y = (Bits)broadcast(sink[1]);
  for (int64_t k = 0; k < iterations; ++k) {
#pragma GCC unroll 32
    for (Sum& s : sum) {
      if constexpr (kWinograd) {
        Bits first = x, second = y;
        asm volatile("" : "+v"(first), "+v"(second));  // others, as far as the compiler knows
        s = add_pairs(s, add_halves(first, y), add_halves(second, x));
      } else {
        s = add_pairs(s, x, y);
      }
    }
  }
  Line all{};
  for (const Sum& s : sum) all += (Line)s;
  sink[0] = lane_sum<float>(all);
  return iterations * kSums * kLines * (kWinograd ? 4 : 2);
}
#endif

}  // namespace

void take_products(IsaTable<float>& table) {
  Kernels<float>& k = table.kernels;
  k.name = kName;
  k.products = kIntegers ? Products::kIntegers : kTwo ? Products::kSplit : Products::kRounded;
  k.panel = kStrip;
  k.depth = kDepthUnit;
  k.rows = {kStrip, 3 * kStrip};
  k.packed_size = strips_size;
  k.pack = pack_strips;
  k.matmul = multiply;
  k.matmul_scratch = multiply_scratch;
  k.matmul_tn = multiply_tn;
  k.matmul_tn_scratch = multiply_tn_scratch;
  table.multiply_adds = multiply_adds_of_unit;
}

}  // namespace cavs::CAVS_ISA
