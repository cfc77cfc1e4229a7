// Exports of an instruction set: one table per dtype, and nothing else.
#pragma once

#include "kernels/kernels.h"

namespace cavs {

template <class T>
struct IsaTable {
  Kernels<T> kernels;
  // Run `iterations` of a loop of independent multiply-adds in registers; return their number.
  // Timing it gives the ceiling that products are measured against.
  int64_t (*multiply_adds)(int64_t iterations, T* sink);
};

#define CAVS_DECLARE_ISA(isa)            \
  namespace isa {                        \
  extern const IsaTable<float> kFloat;   \
  extern const IsaTable<double> kDouble; \
  }
CAVS_DECLARE_ISA(base)
CAVS_DECLARE_ISA(avx2)
CAVS_DECLARE_ISA(avx512)

// Products of narrow numbers, which replace those of the table.
#define CAVS_DECLARE_PRODUCTS(unit)           \
  namespace unit {                            \
  void take_products(IsaTable<float>& table); \
  }
CAVS_DECLARE_PRODUCTS(amx_split)
CAVS_DECLARE_PRODUCTS(amx_rounded)
CAVS_DECLARE_PRODUCTS(avx512_rounded)
CAVS_DECLARE_PRODUCTS(avx512_integers)
CAVS_DECLARE_PRODUCTS(avx512_winograd)

}  // namespace cavs
