// copy: out[r] = the operand's row of r.
#include "cuda/executor/launchers.h"

namespace cavs::cuda {

template <class T>
void Launchers<T>::copy(Executor<T>& e, int32_t id, const LaunchRows& at) {
  const Rows<T> in = e.source(e.bound_.instructions[id].first, at.first_row);
  e.library_->copy_rows(in, at.rows.begin, at.rows.end, e.target(id, at.first_row));
}

CAVS_INSTANTIATE_LAUNCHER(copy)

}  // namespace cavs::cuda
