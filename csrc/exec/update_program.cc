#include "exec/update_program.h"

#include <algorithm>

namespace cavs {
namespace {

constexpr int64_t kGathered = 1 << 10;  // elements of rows of a table that are updated at once
constexpr int32_t kMostLoads = 2 + kMostStates + kMostNumbers;

template <class T>
MapKernel<T> kernel_of(const UpdateProgram& program) {
  MapKernel<T> kernel{};
  kernel.ops = program.ops.data();
  kernel.num_loads = program.loads();
  kernel.num_ops = static_cast<int32_t>(program.ops.size());
  kernel.num_stores = static_cast<int32_t>(program.results.size());
  kernel.num_registers = program.registers;
  kernel.outer = 1;
  return kernel;
}

}  // namespace

template <class T>
size_t program_scratch(const Kernels<T>& kernels, const UpdateProgram& program, int64_t width) {
  const int64_t gathered = width == 0 ? 0 : std::max(kGathered, width);
  return kernels.map_scratch(kernel_of<T>(program)) + program.results.size() * gathered;
}

// A table's rows are read through their numbers; results are computed side by side and then copied
// to them.
template <class T>
void run_program(const Kernels<T>& kernels, const UpdateProgram& program,
                 const std::vector<double>& numbers, double scale, const GradientPiece<T>& p,
                 T* param, const StateArrays<T>& states, T* scratch) {
  const int32_t num_states = program.states();
  const bool whole = p.rows == nullptr && p.stride == p.width;  // as one row
  const int64_t width = whole ? p.count * p.width : p.width, count = whole ? 1 : p.count;
  const int64_t stride = whole ? width : p.stride;
  const auto target = [&](int32_t i) { return (i == 0 ? param : states[i - 1]) + p.offset; };
  T values[kMostNumbers];
  MapLoad<T> loads[kMostLoads] = {};
  MapStore<T> stores[1 + kMostStates];
  MapKernel<T> kernel = kernel_of<T>(program);
  kernel.loads = loads;
  kernel.stores = stores;
  kernel.inner = static_cast<int32_t>(width);
  const auto load = [&](int32_t i, const T* data, int64_t step, RowMap map) {
    loads[i].source.data = data;
    loads[i].source.stride = step;
    loads[i].source.width = map == RowMap::kOne ? 1 : kernel.inner;
    loads[i].source.map = map;
    loads[i].scalar = map == RowMap::kOne;
  };
  const RowMap map = p.rows ? RowMap::kIndex : RowMap::kSelf;
  load(0, target(0), stride, map);
  load(1, p.values, width, RowMap::kSelf);
  for (int32_t i = 0; i < num_states; ++i) load(2 + i, target(1 + i), stride, map);
  for (int32_t i = 0; i < program.numbers; ++i) {
    values[i] = static_cast<T>(i == 0 ? scale : numbers[i]);
    load(2 + num_states + i, values + i, 0, RowMap::kOne);
  }
  if (p.rows == nullptr) {
    for (int32_t i = 0; i <= num_states; ++i) {
      stores[i] = {target(i), stride, 0, 0, StoreMode::kWrite, program.results[i]};
    }
    kernels.map(kernel, 0, count, scratch);
    return;
  }
  const int64_t each = std::max<int64_t>(1, kGathered / width);
  T* const results = scratch + kernels.map_scratch(kernel);
  for (int64_t begin = 0; begin < count; begin += each) {
    const int64_t rows = std::min(each, count - begin);
    const auto row_of = [&](int64_t r) { return p.rows[begin + r] * stride; };
    for (int32_t i = 0; i <= num_states; ++i) {
      loads[i == 0 ? 0 : 1 + i].source.index = p.rows + begin;
      T* const result = results + i * each * width;
      stores[i] = {result, width, 0, 0, StoreMode::kWrite, program.results[i]};
    }
    loads[1].source.data = p.values + begin * width;
    kernels.map(kernel, 0, rows, scratch);
    for (int32_t i = 0; i <= num_states; ++i) {
      const T* result = results + i * each * width;
      T* const out = target(i);
      for (int64_t r = 0; r < rows; ++r, result += width) {
        std::copy_n(result, width, out + row_of(r));
      }
    }
  }
}

#define CAVS_INSTANTIATE(T)                                                                      \
  template size_t program_scratch(const Kernels<T>&, const UpdateProgram&, int64_t);             \
  template void run_program(const Kernels<T>&, const UpdateProgram&, const std::vector<double>&, \
                            double, const GradientPiece<T>&, T*, const StateArrays<T>&, T*);
CAVS_INSTANTIATE(float)
CAVS_INSTANTIATE(double)
#undef CAVS_INSTANTIATE

}  // namespace cavs
