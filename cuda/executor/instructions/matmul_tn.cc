// matmul_tn: out (+)= the product of transposed rows of the left operands and rows of the right
// ones.
#include <algorithm>

#include "cuda/executor/launchers.h"

namespace cavs::cuda {

// Copy the operands instead of multiplying, for a gradient handed out as sufficient factors.
template <class T>
void Executor<T>::copy_factors(DeviceFactors& f, int32_t id, RowRange rows) {
  if (rows.size() == 0) return;
  const Bound<T>& b = bound_.instructions[id];
  const auto at = std::find(f.of.instructions.begin(), f.of.instructions.end(), id);
  const int64_t first = f.of.first_row[at - f.of.instructions.begin()];
  T* left = f.left.as<T>() + first * f.of.k;
  T* right = f.right.as<T>() + first * f.of.n;
  for (int32_t i = 0; i < b.count; ++i) {
    const Rows<T> operand = source(b.first + i, rows.begin);
    T*& out = i < b.split ? left : right;
    library_->copy_rows(operand, rows.begin, rows.end,
                        Target{out, i < b.split ? f.of.k : f.of.n, rows.begin});
    out += operand.width;
  }
}

template <class T>
void Launchers<T>::matmul_tn(Executor<T>& e, int32_t id, const LaunchRows& at) {
  if (const int32_t f = e.factors_of_instruction_[id]; f >= 0) {
    e.copy_factors(*e.factors_[f], id, at.rows);
    return;
  }
  const Bound<T>& b = e.bound_.instructions[id];
  bool accumulate = b.accumulate;
  for (const RowRange& run : e.even_runs(id, at.rows)) {
    const std::vector<Rows<T>> left = e.operands(id, 0, b.split, run, at.first_row);
    const std::vector<Rows<T>> right = e.operands(id, b.split, b.count, run, at.first_row);
    e.library_->matmul_tn(left.data(), static_cast<int>(left.size()), right.data(),
                          static_cast<int>(right.size()), run.begin, run.end, b.out, b.stride,
                          accumulate);
    accumulate = true;
  }
}

CAVS_INSTANTIATE_LAUNCHER(matmul_tn)

}  // namespace cavs::cuda
