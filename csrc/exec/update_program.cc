#include "exec/update_program.h"

#include <algorithm>

namespace cavs {
namespace {

constexpr int64_t kGathered = 1 << 10;  // elements of rows that are updated at once

// A kernel over one row of elements, which are contiguous.
template <class T>
class ProgramKernel {
 public:
  ProgramKernel(const UpdateProgram& program, const std::vector<double>& numbers, double scale)
      : states_(program.states()) {
    kernel_.loads = loads_;
    kernel_.stores = stores_;
    kernel_.ops = program.ops.data();
    kernel_.num_loads = program.loads();
    kernel_.num_ops = static_cast<int32_t>(program.ops.size());
    kernel_.num_stores = 1 + states_;
    kernel_.num_registers = program.registers;
    kernel_.outer = 1;
    for (int32_t i = 0; i <= states_; ++i) stores_[i].reg = program.results[i];
    for (size_t i = 0; i < numbers.size(); ++i) {
      values_[i] = static_cast<T>(i == 0 ? scale : numbers[i]);
      MapLoad<T>& load = loads_[2 + states_ + i];
      load.source.data = values_ + i;
      load.source.map = RowMap::kOne;
      load.source.width = 1;
      load.scalar = true;
    }
  }
  ProgramKernel(const ProgramKernel&) = delete;

  const MapKernel<T>& kernel() const { return kernel_; }

  // Update n values and states; targets: of the value, then of the states.
  void run(const Kernels<T>& kernels, int64_t n, const T* grad, T* const* targets, T* scratch) {
    kernel_.inner = static_cast<int32_t>(n);
    loads_[1].source.data = grad;
    for (int32_t i = 0; i <= states_; ++i) {
      loads_[i == 0 ? 0 : 1 + i].source.data = targets[i];
      stores_[i].data = targets[i];
    }
    for (int32_t i = 0; i < 2 + states_; ++i) loads_[i].source.stride = n;
    kernels.map(kernel_, 0, 1, scratch);
  }

 private:
  const int32_t states_;
  T values_[kMostNumbers];
  MapLoad<T> loads_[2 + kMostStates + kMostNumbers] = {};
  MapStore<T> stores_[1 + kMostStates] = {};
  MapKernel<T> kernel_{};
};

}  // namespace

template <class T>
size_t program_scratch(const Kernels<T>& kernels, const UpdateProgram& program, int64_t width) {
  const int64_t gathered = width == 0 ? 0 : std::max(kGathered, width);
  const ProgramKernel<T> of(program, {}, 1);
  return kernels.map_scratch(of.kernel()) + program.results.size() * gathered;
}

// Rows that are not contiguous are copied side by side, updated, and copied back.
template <class T>
void run_program(const Kernels<T>& kernels, const UpdateProgram& program,
                 const std::vector<double>& numbers, double scale, const GradientPiece<T>& p,
                 T* param, const StateArrays<T>& states, T* scratch) {
  ProgramKernel<T> kernel(program, numbers, scale);
  T *memory[1 + kMostStates], *targets[1 + kMostStates];
  const int32_t count = 1 + program.states();
  for (int32_t i = 0; i < count; ++i) memory[i] = (i == 0 ? param : states[i - 1]) + p.offset;
  if (p.is_contiguous()) {
    kernel.run(kernels, p.count * p.width, p.values, memory, scratch);
    return;
  }
  const int64_t each = std::max<int64_t>(1, kGathered / p.width);
  for (int32_t i = 0; i < count; ++i) {
    targets[i] = scratch + kernels.map_scratch(kernel.kernel()) + i * each * p.width;
  }
  for (int64_t begin = 0; begin < p.count; begin += each) {
    const int64_t rows = std::min(each, p.count - begin);
    const auto for_each_row = [&](auto&& copy) {
      for (int32_t i = 0; i < count; ++i) {
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t row = p.rows ? p.rows[begin + r] : begin + r;
          copy(targets[i] + r * p.width, memory[i] + row * p.stride);
        }
      }
    };
    for_each_row([&](T* gathered, const T* row) { std::copy_n(row, p.width, gathered); });
    kernel.run(kernels, rows * p.width, p.values + begin * p.width, targets, scratch);
    for_each_row([&](const T* gathered, T* row) { std::copy_n(gathered, p.width, row); });
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
