// cross_entropy, cross_entropy_grad: the loss of logits and labels, and its gradient.
#include "cuda/executor/launchers.h"

namespace cavs::cuda {

template <class T>
void Launchers<T>::cross_entropy(Executor<T>& e, int32_t id, const LaunchRows& at) {
  const Rows<T> logits = e.source(e.bound_.instructions[id].first, at.first_row);
  e.library_->cross_entropy(logits, e.arrays_.of_instruction(id), at.rows.begin, at.rows.end,
                            e.target(id, at.first_row));
}

template <class T>
void Launchers<T>::cross_entropy_grad(Executor<T>& e, int32_t id, const LaunchRows& at) {
  const Bound<T>& b = e.bound_.instructions[id];
  const Rows<T> logits = e.source(b.first, at.first_row);
  const Rows<T> slope = b.count > 1 ? e.source(b.first + 1, at.first_row) : Rows<T>{};
  e.library_->cross_entropy_grad(logits, slope, e.arrays_.of_instruction(id), at.rows.begin,
                                 at.rows.end, e.target(id, at.first_row));
}

CAVS_INSTANTIATE_LAUNCHER(cross_entropy)
CAVS_INSTANTIATE_LAUNCHER(cross_entropy_grad)

}  // namespace cavs::cuda
