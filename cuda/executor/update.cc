// The update half of a training step on the device: norm, clipping, optimiser. The host reads only
// the outcome, on demand.
#include <algorithm>
#include <iterator>
#include <numeric>

#include "cuda/driver/context.h"
#include "cuda/executor/executor.h"
#include "exec/host_io.h"

namespace cavs::cuda {
namespace {

constexpr int64_t kPiece = 1 << 12;  // elements of a chunk; fixed, so that sums have one order
constexpr size_t kNearBytes = 128;   // more than the padding between two gradients

Optimizer optimizer_of(const OptimizerStep& s) {
  return {static_cast<int>(s.rule), s.nesterov,   s.lr,    s.momentum, s.beta1, s.beta2, s.eps,
          s.weight_decay,           s.grad_scale, s.bias1, s.bias2};
}

}  // namespace

// Cut the gradients of the next run into chunks of a block each. Rows of tables are filled in by
// resolve_update_chunks() once their address is known.
template <class T>
void Executor<T>::plan_update_chunks() {
  chunks_.clear();
  chunk_params_.clear();
  chunk_rows_.clear();
  if (states_ == nullptr) return;
  const auto cut = [&](int32_t param, const T* grad, int64_t count, int64_t width, int32_t table) {
    const int64_t each = std::max<int64_t>(1, kPiece / width);
    for (int64_t i = 0; i < count; i += each) {
      const int64_t offset = table < 0 ? i * width : 0;
      chunks_.push_back({parameters_->on_device()[param],
                         grad + i * width,
                         {},
                         nullptr,
                         std::min(each, count - i),
                         width,
                         width,
                         offset});
      std::ranges::copy((*states_)[param], chunks_.back().states);
      chunk_params_.push_back(param);
      chunk_rows_.emplace_back(table, i);
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

// Neighbouring chunks with the same scales of learning rate and decay share a launch.
template <class T>
void Executor<T>::update_chunks(const Update<T>& update, double scale, const Outcome* outcome) {
  const auto* chunks = staging_.at<UpdateChunk<T>>(chunks_at_);
  const auto scales = [&](size_t i) {
    return update.scales.empty() ? std::pair(1.0, 1.0) : update.scales[chunk_params_[i]];
  };
  for (size_t begin = 0, end; begin < chunks_.size(); begin = end) {
    for (end = begin + 1; end < chunks_.size() && scales(end) == scales(begin);) ++end;
    const auto count = static_cast<int>(end - begin);
    if (update.program) {
      UpdateNumbers numbers{};
      std::ranges::copy(update.numbers_of(chunk_params_[begin]), numbers.of);
      numbers.of[0] = scale;
      library_->update(chunks + begin, count, update.program->key, numbers, outcome);
      continue;
    }
    OptimizerStep step = update.of(chunk_params_[begin]);
    step.grad_scale *= scale;
    library_->update(chunks + begin, count, optimizer_of(step), outcome);
  }
}

template <class T>
void Executor<T>::resolve_update_chunks() {
  for (size_t i = 0; i < chunks_.size(); ++i) {
    const auto [table, first] = chunk_rows_[i];
    if (table >= 0) chunks_[i].rows = staging_.at<int32_t>(table_slots_[table]) + first;
  }
}

template <class T>
std::shared_ptr<Step> Executor<T>::launch(const Inputs<T>& inputs, const Update<T>& update,
                                          std::shared_ptr<const void> owner,
                                          const std::shared_ptr<Step>& after) {
  const DeviceLock lock(*device_);
  check_update(update, parameters_->sizes().size());
  StepOutcomes& outcomes = parameters_->outcomes();
  outcomes.reserve();
  parameters_->mark_moved(update.trainable);
  states_ = &parameters_->states(update.states, std::move(owner));
  trainable_ = update.trainable;
  try {
    forward_and_backward(inputs);
  } catch (...) {
    states_ = nullptr;
    throw;
  }
  states_ = nullptr;
  const auto count = static_cast<int>(chunks_.size());
  const auto* chunks = staging_.at<UpdateChunk<T>>(chunks_at_);
  partial_.reserve(sizeof(double) * chunks_.size());
  auto* partial = partial_.as<double>();
  Outcome* outcome = outcomes.next();
  const T* loss =
      program_->loss < 0 ? nullptr : reinterpret_cast<const T*>(address_of(program_->loss));
  timeline_.on_lane(0, "update", [&] {
    library_->square(chunks, count, partial);
    library_->compute_outcome(partial, count, loss, update.max_norm.value_or(0),
                              outcomes.condition(after), outcome);
    update_chunks(update, 1, outcome);
  });
  stale_ = true;
  staging_.mark_read();
  std::shared_ptr<Step> step = outcomes.launched();
  if (profiling_) {
    device_->synchronize();
    read_stage_times();
  }
  return step;
}

template <class T>
bool Executor<T>::on_device(const GradientPiece<T>& p) const {
  const T* block = gradients_.template as<T>();
  return p.values >= block && p.values + p.count * p.width <= block + mirror_.layout().elements;
}

// Adjacent gradients are uploaded in one copy: only padding lies between whole gradients.
template <class T>
void Executor<T>::upload_mirrored(const std::vector<GradientPiece<T>>& pieces) {
  struct Range {
    const T *begin, *end;
    bool from_start, to_end;  // starts, or ends, with its gradient
    bool operator<(const Range& other) const { return begin < other.begin; }
  };
  std::vector<Range> ranges;
  for (const GradientPiece<T>& p : pieces) {
    const T* end = p.values + p.count * p.width;
    if (!mirror_.holds(p.values, end - p.values)) continue;
    const T* whole = mirror_.dense(p.param);
    ranges.push_back(
        {p.values, end, p.values == whole, end == whole + parameters_->sizes()[p.param]});
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 0; i < ranges.size();) {
    const T* begin = ranges[i].begin;
    Range last = ranges[i];
    for (++i; i < ranges.size(); last = ranges[i++]) {
      const bool next = ranges[i].begin == last.end;
      const bool near = static_cast<size_t>(ranges[i].begin - last.end) < kNearBytes / sizeof(T);
      if (!next && !(near && last.to_end && ranges[i].from_start)) break;
    }
    device_->upload(reinterpret_cast<Address>(gradients_.as<T>() + (begin - mirror_.block())),
                    begin, (last.end - begin) * sizeof(T));
  }
}

// Make the gradients available at the addresses in `chunks_`: those of the mirror are copied back
// to the block on the device, those on the device stay there, others are staged.
template <class T>
void Executor<T>::upload_gradients(const std::vector<GradientPiece<T>>& pieces,
                                   const States& states) {
  struct Staged {
    int32_t values = -1, rows = -1;
  };
  staging_.clear();
  chunks_.clear();
  std::vector<Staged> staged;
  std::vector<int32_t> of;  // by chunk: its piece
  std::vector<GradientPiece<T>> work;
  for (const GradientPiece<T>& p : pieces) {
    const int64_t count = p.count * p.width;
    Staged s;
    if (!on_device(p) && !mirror_.holds(p.values, count))
      s.values = staging_.add(p.values, count * sizeof(T));
    if (p.rows != nullptr) s.rows = staging_.add(p.rows, p.count * sizeof(int32_t));
    cut_piece(p, kPiece, work);
    of.resize(work.size(), static_cast<int32_t>(staged.size()));
    staged.push_back(s);
  }
  chunks_.resize(work.size());
  chunk_params_.resize(work.size());
  chunks_at_ = staging_.add(std::span<const UpdateChunk<T>>(chunks_));
  staging_.reserve();
  T* block = gradients_.as<T>();
  for (size_t i = 0; i < work.size(); ++i) {
    const GradientPiece<T>& w = work[i];
    const GradientPiece<T>& p = pieces[of[i]];
    const Staged& s = staged[of[i]];
    const T* grad = on_device(p)   ? w.values
                    : s.values < 0 ? block + (w.values - mirror_.block())
                                   : staging_.at<T>(s.values) + (w.values - p.values);
    const int32_t* rows = s.rows < 0 ? nullptr : staging_.at<int32_t>(s.rows) + (w.rows - p.rows);
    chunk_params_[i] = w.param;
    chunks_[i] = {
        parameters_->on_device()[w.param], grad, {}, rows, w.count, w.width, w.stride, w.offset};
    std::ranges::copy(states[w.param], chunks_[i].states);
  }
  upload_mirrored(pieces);
  staging_.upload();
}

template <class T>
double Executor<T>::squared_norm(const std::vector<GradientPiece<T>>& pieces) {
  const DeviceLock lock(*device_);
  check_pieces(pieces, parameters_->sizes());
  if (pieces.empty()) return 0;
  collectives_.join();
  const States none(parameters_->sizes().size());
  upload_gradients(pieces, none);
  std::vector<double> partial(chunks_.size());
  const size_t bytes = partial.size() * sizeof(double);
  partial_.reserve(bytes);
  library_->square(staging_.at<UpdateChunk<T>>(chunks_at_), static_cast<int>(partial.size()),
                   partial_.as<double>());
  staging_.mark_read();
  device_->download(partial.data(), partial_.at(), bytes);
  device_->synchronize();
  return std::accumulate(partial.begin(), partial.end(), 0.0);
}

template <class T>
void Executor<T>::apply(const Update<T>& update, const std::vector<GradientPiece<T>>& pieces,
                        double scale, std::shared_ptr<const void> owner) {
  const DeviceLock lock(*device_);
  check_update(update, parameters_->sizes().size());
  check_pieces(pieces, parameters_->sizes());
  const States& states = parameters_->states(update.states, std::move(owner));
  parameters_->upload();
  std::vector<GradientPiece<T>> some;
  std::copy_if(pieces.begin(), pieces.end(), std::back_inserter(some),
               [&](const GradientPiece<T>& p) { return p.count > 0 && update.trainable[p.param]; });
  if (some.empty()) return;
  collectives_.join();
  upload_gradients(some, states);
  std::vector<bool> moved(parameters_->sizes().size(), false);
  for (const GradientPiece<T>& p : some) moved[p.param] = true;
  parameters_->mark_moved(moved);
  StepOutcomes& outcomes = parameters_->outcomes();
  update_chunks(update, scale, outcomes.accepted());
  outcomes.applied();
  stale_ = true;
  staging_.mark_read();
}

#define CAVS_INSTANTIATE(T)                                                                        \
  template std::shared_ptr<Step> Executor<T>::launch(const Inputs<T>&, const Update<T>&,           \
                                                     std::shared_ptr<const void>,                  \
                                                     const std::shared_ptr<Step>&);                \
  template double Executor<T>::squared_norm(const std::vector<GradientPiece<T>>&);                 \
  template void Executor<T>::plan_update_chunks();                                                 \
  template void Executor<T>::upload_mirrored(const std::vector<GradientPiece<T>>&);                \
  template void Executor<T>::apply(const Update<T>&, const std::vector<GradientPiece<T>>&, double, \
                                   std::shared_ptr<const void>);                                   \
  template void Executor<T>::resolve_update_chunks();
CAVS_INSTANTIATE(float)
CAVS_INSTANTIATE(double)
#undef CAVS_INSTANTIATE

}  // namespace cavs::cuda
