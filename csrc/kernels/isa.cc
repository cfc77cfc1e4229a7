// The kernels of one instruction set. CMake compiles this file once for each, with CAVS_ISA (its
// name and namespace) and CAVS_VECTOR_BYTES defined. No header with inline functions of external
// linkage may be used here: the linker would keep one copy, maybe of the wrong instruction set.
#include "kernels/isa_map.h"
#include "kernels/isa_matmul.h"
#include "kernels/isa_matmul_tn.h"
#include "kernels/isa_rows.h"
#include "kernels/isa_table.h"
#include "kernels/isa_update.h"

#define CAVS_TEXT_OF(x) #x
#define CAVS_TEXT(x) CAVS_TEXT_OF(x)

namespace cavs::CAVS_ISA {
namespace {

template <class T>
int64_t multiply_adds(int64_t iterations, T* sink) {
  constexpr int kChains = CAVS_VECTOR_BYTES == 64 ? 24 : 12;  // enough to hide the latency
  Vector<T> acc[kChains];
#pragma GCC unroll 32
  for (int i = 0; i < kChains; ++i) acc[i] = broadcast(static_cast<T>(i));
  const Vector<T> x = broadcast(sink[0]), y = broadcast(sink[1]);
  for (int64_t k = 0; k < iterations; ++k) {
#pragma GCC unroll 32
    for (int i = 0; i < kChains; ++i) acc[i] = acc[i] * x + y;
  }
  Vector<T> sum{};
#pragma GCC unroll 32
  for (int i = 0; i < kChains; ++i) sum += acc[i];
  sink[0] = lane_sum<T>(sum);
  return iterations * kChains * kLanes<T>;
}

template <class T>
constexpr IsaTable<T> make_table() {
  return {{CAVS_TEXT(CAVS_ISA),
           Products::kExact,
           kPanel<T>,
           1,
           {2 * kTileRows, 8 * kTileRows},
           packed_size<T>,
           pack<T>,
           matmul<T>,
           matmul_scratch<T>,
           matmul_tn<T>,
           matmul_tn_scratch<T>,
           map<T>,
           map_scratch<T>,
           sum_rows<T>,
           segment_max<T>,
           segment_product<T>,
           cross_entropy<T>,
           copy_rows<T>,
           update<T>,
           sum_of_squares<T>},
          multiply_adds<T>};
}

}  // namespace

extern constexpr IsaTable<float> kFloat = make_table<float>();
extern constexpr IsaTable<double> kDouble = make_table<double>();

}  // namespace cavs::CAVS_ISA
