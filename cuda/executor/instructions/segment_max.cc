// segment_max: out[r] = the maxima over the operand's segment of r.
#include "cuda/executor/launchers.h"

namespace cavs::cuda {

template <class T>
void Launchers<T>::segment_max(Executor<T>& e, int32_t id, const LaunchRows& at) {
  const Rows<T> in = e.source(e.bound_.instructions[id].first, at.first_row);
  e.library_->segment_max(in, at.rows.begin, at.rows.end, e.target(id, at.first_row));
}

CAVS_INSTANTIATE_LAUNCHER(segment_max)

}  // namespace cavs::cuda
