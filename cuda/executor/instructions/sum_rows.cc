// sum_rows: out[0] (+)= the sum of the operand's rows; several such sums in one launch.
#include "cuda/executor/launchers.h"

namespace cavs::cuda {

template <class T>
void Launchers<T>::joint_sum_rows(Executor<T>& e, const std::vector<int32_t>& ids, RowRange rows) {
  std::vector<Rows<T>> sources;
  std::vector<Sum<T>> sums;
  for (int32_t id : ids) {
    const Bound<T>& b = e.bound_.instructions[id];
    sources.push_back(e.source(b.first, rows.begin));
    sums.push_back({b.out, sources.back().width, b.accumulate});
  }
  e.library_->sum_rows(sources.data(), sums.data(), static_cast<int>(ids.size()), rows.begin,
                       rows.end);
}

template <class T>
void Launchers<T>::sum_rows(Executor<T>& e, int32_t id, const LaunchRows& at) {
  joint_sum_rows(e, {id}, at.rows);
}

template void Launchers<float>::joint_sum_rows(Executor<float>&, const std::vector<int32_t>&,
                                               RowRange);
template void Launchers<double>::joint_sum_rows(Executor<double>&, const std::vector<int32_t>&,
                                                RowRange);

CAVS_INSTANTIATE_LAUNCHER(sum_rows)

}  // namespace cavs::cuda
