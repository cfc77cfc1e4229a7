// Launches sum_rows, several over the same rows at once.
#include "cuda/executor/launchers.h"

namespace cavs::cuda {

template <class T>
void Launchers<T>::sum_rows_together(Executor<T>& e, const std::vector<int32_t>& ids,
                                     RowRange rows) {
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
  sum_rows_together(e, {id}, at.rows);
}

template void Launchers<float>::sum_rows_together(Executor<float>&, const std::vector<int32_t>&,
                                                  RowRange);
template void Launchers<double>::sum_rows_together(Executor<double>&, const std::vector<int32_t>&,
                                                   RowRange);

CAVS_INSTANTIATE_LAUNCHER(sum_rows)

}  // namespace cavs::cuda
