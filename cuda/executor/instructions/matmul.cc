// matmul: out[r] (+)= the operands of r, concatenated, times a packed weight.
#include "cuda/executor/launchers.h"

namespace cavs::cuda {

template <class T>
void Launchers<T>::matmul(Executor<T>& e, int32_t id, const LaunchRows& at) {
  const Bound<T>& b = e.bound_.instructions[id];
  const std::vector<Rows<T>> sources = e.operands(id, 0, b.count, at.rows, at.first_row);
  e.library_->matmul(sources.data(), static_cast<int>(sources.size()), at.rows.begin, at.rows.end,
                     b.packed, static_cast<int>(b.n), e.target(id, at.first_row), b.accumulate);
}

CAVS_INSTANTIATE_LAUNCHER(matmul)

}  // namespace cavs::cuda
