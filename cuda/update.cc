// The update half of a training step, on the device: norm, clipping, optimiser. The host reads
// nothing but the outcome, and that when it is asked for.
#include <algorithm>

#include "exec/caller.h"
#include "executor.h"

namespace cavs::cuda {
namespace {

constexpr int64_t kPiece = 1 << 12;  // elements of a block's share; fixed, so sums have one order

Optimizer on_device(const OptimizerStep& s) {
  return {static_cast<int>(s.kind), s.nesterov,   s.lr,    s.momentum, s.beta1, s.beta2, s.eps,
          s.weight_decay,           s.grad_scale, s.bias1, s.bias2};
}

}  // namespace

// The gradients of the run to come, in pieces of a block each; rows of tables are filled in by
// resolve_stretches once their address is known.
template <class T>
void Executor<T>::plan_stretches() {
  stretches_.clear();
  stretch_rows_.clear();
  if (states_ == nullptr) return;
  const auto cut = [&](int32_t param, const T* grad, int64_t count, int64_t width, int32_t table) {
    const auto [first, second] = (*states_)[param];
    const int64_t each = std::max<int64_t>(1, kPiece / width);
    for (int64_t i = 0; i < count; i += each) {
      const int64_t offset = table < 0 ? i * width : 0;
      stretches_.push_back({parameters_->on_device()[param], grad + i * width, first, second,
                            nullptr, std::min(each, count - i), width, width, offset});
      stretch_rows_.emplace_back(table, i);
    }
  };
  for (size_t i = 0; i < grads_.size(); ++i) {
    if (trainable_[i] && grads_[i]) {
      cut(static_cast<int32_t>(i), grads_[i], parameters_->sizes()[i], 1, -1);
    }
  }
  for (size_t t = 0; t < tables_.size(); ++t) {
    const Table& table = tables_[t];
    if (!trainable_[table.param] || table.dense) continue;
    cut(table.param, table_at_[t], static_cast<int64_t>(table.slots.size()), table.width,
        static_cast<int32_t>(t));
  }
}

template <class T>
void Executor<T>::resolve_stretches() {
  for (size_t i = 0; i < stretches_.size(); ++i) {
    const auto [table, first] = stretch_rows_[i];
    if (table >= 0) stretches_[i].rows = staging_.at<int32_t>(table_slots_[table]) + first;
  }
}

template <class T>
std::shared_ptr<Step> Executor<T>::launch(const Inputs<T>& inputs, const Update<T>& update,
                                          std::shared_ptr<const void> owner,
                                          const std::shared_ptr<Step>& after) {
  const Turn turn(*device_);
  check_update(update, parameters_->sizes().size());
  Outcomes& outcomes = parameters_->outcomes();
  outcomes.reserve();
  states_ = &parameters_->states(update.states, std::move(owner));
  trainable_ = update.trainable;
  try {
    forward_and_backward(inputs);
  } catch (...) {
    states_ = nullptr;
    throw;
  }
  states_ = nullptr;
  const auto count = static_cast<int>(stretches_.size());
  const auto* stretches = staging_.at<Stretch<T>>(stretches_at_);
  partial_.reserve(sizeof(double) * stretches_.size());
  auto* partial = partial_.as<double>();
  Outcome* outcome = outcomes.next();
  const T* loss =
      program_->loss < 0 ? nullptr : reinterpret_cast<const T*>(address_of(program_->loss));
  library_->square(stretches, count, partial);
  library_->judge(partial, count, loss, update.max_norm.value_or(0), outcomes.condition(after),
                  outcome);
  library_->update(stretches, count, on_device(update.step), outcome);
  stale_ = true;
  staging_.read();
  std::shared_ptr<Step> step = outcomes.launched();
  if (profiling_) {
    device_->synchronize();
    timed(-1);
  }
  return step;
}

#define CAVS_INSTANTIATE(T)                                                              \
  template std::shared_ptr<Step> Executor<T>::launch(const Inputs<T>&, const Update<T>&, \
                                                     std::shared_ptr<const void>,        \
                                                     const std::shared_ptr<Step>&);      \
  template void Executor<T>::plan_stretches();                                           \
  template void Executor<T>::resolve_stretches();
CAVS_INSTANTIATE(float)
CAVS_INSTANTIATE(double)
#undef CAVS_INSTANTIATE

}  // namespace cavs::cuda
