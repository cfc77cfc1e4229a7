// segment_product: out[r] = the products over the operand's segment of r.
#include "cuda/executor/launchers.h"

namespace cavs::cuda {

template <class T>
void Launchers<T>::segment_product(Executor<T>& e, int32_t id, const LaunchRows& at) {
  const Rows<T> in = e.source(e.bound_.instructions[id].first, at.first_row);
  e.library_->segment_product(in, at.rows.begin, at.rows.end, e.target(id, at.first_row));
}

CAVS_INSTANTIATE_LAUNCHER(segment_product)

}  // namespace cavs::cuda
