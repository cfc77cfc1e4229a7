// A step in parts: forward, then backward; which gradients are final while a run works, views of
// them, and the update by the caller's sums.
#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
#include <utility>

#include "exec/host_io.h"

namespace cavs {
namespace {

// Cut gradients of the caller into chunks.
template <class T>
std::vector<GradientPiece<T>> cut_into_chunks(const std::vector<GradientPiece<T>>& pieces,
                                              const std::vector<int64_t>& sizes) {
  check_pieces(pieces, sizes);
  std::vector<GradientPiece<T>> work;
  for (const GradientPiece<T>& p : pieces) cut_piece(p, kUpdateChunk, work);
  return work;
}

}  // namespace

GradientProgress::GradientProgress(const Analysis& analysis, const std::vector<int64_t>& sizes)
    : analysis_(analysis), sizes_(sizes) {
  int32_t slabs = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    first_.push_back(slabs);
    const int64_t slab = analysis.slab[i];
    slabs += static_cast<int32_t>(std::max<int64_t>(1, (sizes[i] + slab - 1) / slab));
  }
  pieces_.assign(slabs, 0);
  left_ = std::make_unique<std::atomic<int32_t>[]>(slabs);
  fill(0);
}

template <class F>
void GradientProgress::each_slab(int32_t param, int64_t begin, int64_t end, F&& f) const {
  const int64_t slab = analysis_.slab[param];
  for (int64_t s = begin / slab; s * slab < end; ++s) f(first_[param] + s);
}

// Call f(slab) for the slabs that an item works on.
template <class F>
void GradientProgress::each_slab(const Item& item, F&& f) const {
  const auto all_of = [&](const std::vector<int32_t>& params) {
    for (int32_t param : params) each_slab(param, 0, sizes_[param], f);
  };
  std::visit(
      Overloaded{[](const PackWeight&) {}, [](const CopyOutputs&) {},
                 [&](const ZeroGradient& i) { each_slab(i.parameter, 0, sizes_[i.parameter], f); },
                 [&](const RunBody& i) { all_of(analysis_.gradients_of_body[i.body]); },
                 [&](const SumCell& i) {
                   const auto& params = analysis_.gradients_of_instruction[i.instruction];
                   const int64_t width = analysis_.result_width[i.instruction];
                   if (width == 0) return all_of(params);
                   for (int32_t param : params) {
                     each_slab(param, i.rows.begin * width, i.rows.end * width, f);
                   }
                 },
                 [&](const auto& i) { all_of(analysis_.gradients_of_instruction[i.instruction]); }},
      item);
}

void GradientProgress::count(const Plan& plan) {
  std::fill(pieces_.begin(), pieces_.end(), 0);
  for (const Item& item : plan.items) {
    each_slab(item, [&](int64_t slab) { ++pieces_[slab]; });
  }
}

void GradientProgress::arm() {
  watched_ = true;
  fill(kArmed);
}

void GradientProgress::begin(const std::vector<Item>& prologue) {
  std::vector<int32_t> pieces = pieces_;
  for (const Item& item : prologue) each_slab(item, [&](int64_t slab) { ++pieces[slab]; });
  for (size_t i = 0; i < pieces.size(); ++i) set(i, pieces[i]);
}

void GradientProgress::finished(const Item& item) {
  each_slab(item, [&](int64_t slab) {
    if (left_[slab].fetch_sub(1, std::memory_order_acq_rel) == 1) left_[slab].notify_all();
  });
}

void GradientProgress::finished(int32_t param) {
  each_slab(param, 0, sizes_[param], [&](int64_t slab) { set(slab, 0); });
}

void GradientProgress::fail() { fill(kFailed); }

bool GradientProgress::wait(int32_t param, int64_t begin, int64_t end) const {
  if (begin < 0 || begin > end || end > sizes_[param]) {
    throw std::out_of_range("elements " + std::to_string(begin) + " to " + std::to_string(end) +
                            " of a gradient that has " + std::to_string(sizes_[param]));
  }
  bool final = true;
  each_slab(param, begin, end, [&](int64_t slab) {
    int32_t left;
    while ((left = left_[slab].load(std::memory_order_acquire)) > 0) {
      left_[slab].wait(left, std::memory_order_acquire);
    }
    final &= left == 0;
  });
  return final;
}

void GradientProgress::set(size_t slab, int32_t value) {
  // An exchange, so that a waiting thread is seen after the new value is visible.
  left_[slab].exchange(value, std::memory_order_acq_rel);
  if (value <= 0) left_[slab].notify_all();
}

void GradientProgress::fill(int32_t value) {
  for (size_t i = 0; i < pieces_.size(); ++i) set(i, value);
}

template <class T>
std::pair<size_t, size_t> Executor<T>::phases_of(Part part) const {
  const std::vector<Phase>& all = plan_.phases;
  if (part == Part::kAll) return {0, all.size()};
  const auto first = std::partition_point(all.begin(), all.end(),
                                          [&](const Phase& phase) {
                                            return phase.stage < program_->forward_stages;
                                          }) -
                     all.begin();
  return part == Part::kForward ? std::pair<size_t, size_t>(0, first)
                                : std::pair<size_t, size_t>(first, all.size());
}

template <class T>
std::shared_ptr<ForwardRun> Executor<T>::forward(const Inputs<T>& inputs) {
  const std::lock_guard lock(mutex_);
  if (program_->forward_stages < 0) throw std::logic_error("the program runs all stages at once");
  arena_ = nullptr;  // before another block is taken: this one may be free
  arena_ = arenas_.take();
  run_locked(inputs, Part::kForward);
  return std::make_shared<ForwardRun>(
      ForwardRun{arena_, inputs.schedule, inputs.seed, inputs.step, generation_});
}

template <class T>
void Executor<T>::backward(ForwardRun& run, const Inputs<T>& inputs) {
  const std::lock_guard lock(mutex_);
  if (run.arena == nullptr) throw std::logic_error("the run has had its backward run");
  if (run.generation != generation_) throw std::logic_error("parameters were written since");
  if (inputs.schedule != run.schedule || inputs.seed != run.seed || inputs.step != run.step) {
    throw std::logic_error("the inputs are those of another run");
  }
  leave_viewed_gradients();
  arena_ = std::exchange(run.arena, nullptr);  // backward writes over the values
  run_locked(inputs, Part::kBackward);
}

template <class T>
void Executor<T>::leave_viewed_gradients() {
  if (gradient_block_.use_count() == 1) {
    std::atomic_thread_fence(std::memory_order_acquire);  // after the last use of a view
    return;
  }
  Memory gradients;
  gradients.reserve(gradient_elements_ * sizeof(T));
  place_gradients(gradients.share<T>());
}

template <class T>
bool Executor<T>::is_outdated(const ForwardRun& run) const {
  const std::lock_guard lock(mutex_);
  return run.generation != generation_;
}

template <class T>
void Executor<T>::arm_gradients() {
  const std::lock_guard lock(mutex_);
  if (!progress_.watched()) planned_threads_ = 0;  // the plan must produce slabs
  progress_.arm();
}

template <class T>
bool Executor<T>::wait_gradient(int32_t param, int64_t begin, int64_t end) const {
  check_param(param);
  return progress_.wait(param, begin, end);
}

template <class T>
GradientView<T> Executor<T>::gradient_view(int32_t param) const {
  check_param(param);
  const std::lock_guard views(views_);
  if (analysis_.dense_gradient[param]) {
    return {context_.grads[param], nullptr, context_.sizes[param], 1, false, gradient_block_};
  }
  for (const Table& t : context_.tables) {
    if (t.param != param) continue;
    const std::shared_ptr<T> values = t.values.template share<T>();
    const auto rows = static_cast<int64_t>(t.slots.size());
    return {values.get(), t.slots.data(), rows, t.width, true, values};
  }
  return {};
}

template <class T>
GradientView<T> Executor<T>::gradient_block() const {
  const std::lock_guard views(views_);
  return {gradient_block_.get(), nullptr, gradient_elements_, 1, false, gradient_block_};
}

template <class T>
bool Executor<T>::set_factored(int32_t param) {
  const std::lock_guard lock(mutex_);
  check_param(param);
  for (const Factors& known : context_.factors) {
    if (known.param == param) return true;
  }
  Factors f;
  if (!make_factors(*program_, analysis_, param, context_.sizes[param], f)) return false;
  for (int32_t id : f.instructions) {
    context_.factors_of_instruction[id] = static_cast<int32_t>(context_.factors.size());
  }
  const std::lock_guard views(views_);
  context_.factors.push_back(std::move(f));
  return true;
}

template <class T>
std::pair<GradientView<T>, GradientView<T>> Executor<T>::factors(int32_t param) const {
  const std::lock_guard views(views_);
  for (const Factors& f : context_.factors) {
    if (f.param != param) continue;
    const auto view = [&](const Memory& memory, int64_t width) -> GradientView<T> {
      return {memory.as<T>(), nullptr, f.rows, width, false, memory.share<T>()};
    };
    return {view(f.left, f.k), view(f.right, f.n)};
  }
  throw std::out_of_range("parameter " + std::to_string(param) + " is not factored");
}

template <class T>
double Executor<T>::squared_norm(const std::vector<GradientPiece<T>>& pieces) {
  const std::lock_guard lock(mutex_);
  return sum_of_squares(cut_into_chunks(pieces, context_.sizes));
}

template <class T>
void Executor<T>::apply(const Update<T>& update, const std::vector<GradientPiece<T>>& pieces,
                        double scale) {
  const std::lock_guard lock(mutex_);
  check_update(update, context_.sizes.size());
  std::vector<GradientPiece<T>> work = cut_into_chunks(pieces, context_.sizes);
  std::erase_if(work, [&](const auto& piece) { return !update.trainable[piece.param]; });
  apply_optimizer(update, work, scale);
}

#define CAVS_INSTANTIATE(T)                                                                 \
  template std::pair<size_t, size_t> Executor<T>::phases_of(Part) const;                    \
  template std::shared_ptr<ForwardRun> Executor<T>::forward(const Inputs<T>&);              \
  template void Executor<T>::backward(ForwardRun&, const Inputs<T>&);                       \
  template void Executor<T>::leave_viewed_gradients();                                      \
  template bool Executor<T>::is_outdated(const ForwardRun&) const;                          \
  template void Executor<T>::arm_gradients();                                               \
  template bool Executor<T>::wait_gradient(int32_t, int64_t, int64_t) const;                \
  template GradientView<T> Executor<T>::gradient_view(int32_t) const;                       \
  template GradientView<T> Executor<T>::gradient_block() const;                             \
  template bool Executor<T>::set_factored(int32_t);                                         \
  template std::pair<GradientView<T>, GradientView<T>> Executor<T>::factors(int32_t) const; \
  template double Executor<T>::squared_norm(const std::vector<GradientPiece<T>>&);          \
  template void Executor<T>::apply(const Update<T>&, const std::vector<GradientPiece<T>>&, double);
CAVS_INSTANTIATE(float)
CAVS_INSTANTIATE(double)
#undef CAVS_INSTANTIATE

}  // namespace cavs
