// The update half of a training step: gradient norm, clipping, optimiser.
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "base/thread_pool.h"
#include "exec/executor.h"

namespace cavs {
namespace {

constexpr int64_t kPiece = 1 << 14;      // elements; fixed, so that sums have one order
constexpr int64_t kParallelPieces = 16;  // fewer stay on one thread

// A stretch of one gradient: elements of a dense one, slots of a table.
struct Stretch {
  int32_t param;
  int32_t table;  // or -1
  int64_t begin, end;
};

template <class T>
void stretches(const RunContext<T>& c, const std::vector<bool>& trainable,
               std::vector<Stretch>& out) {
  const auto add = [&](int32_t param, int32_t table, int64_t n, int64_t each) {
    for (int64_t i = 0; i < n; i += each) out.push_back({param, table, i, std::min(n, i + each)});
  };
  for (size_t i = 0; i < c.grads.size(); ++i) {
    if (trainable[i] && c.grads[i]) add(static_cast<int32_t>(i), -1, c.sizes[i], kPiece);
  }
  for (size_t t = 0; t < c.tables.size(); ++t) {
    const Table& table = c.tables[t];
    if (!trainable[table.param] || table.dense) continue;
    add(table.param, static_cast<int32_t>(t), static_cast<int64_t>(table.slots.size()),
        std::max<int64_t>(1, kPiece / table.width));
  }
}

// Every thread takes the same pieces in each step, so that parameters and states stay in its cache,
// then what is left of the others'.
template <class F>
void for_each_piece(int64_t pieces, int32_t threads, F&& f) {
  if (pieces < kParallelPieces || threads == 1) {
    for (int64_t i = 0; i < pieces; ++i) f(i);
    return;
  }
  std::vector<std::atomic<int64_t>> next(threads);
  thread_pool().parallel(threads, [&](int32_t thread) {
    for (int32_t i = 0; i < threads; ++i) {
      const int32_t share = (thread + i) % threads;
      const int64_t begin = pieces * share / threads, end = pieces * (share + 1) / threads;
      for (int64_t j; (j = begin + next[share].fetch_add(1, std::memory_order_relaxed)) < end;) {
        f(j);
      }
    }
  });
}

}  // namespace

template <class T>
StepResult Executor<T>::step(const Inputs<T>& inputs, const Update<T>& update) {
  const std::lock_guard lock(mutex_);
  if (update.trainable.size() != context_.sizes.size() ||
      update.states.size() != context_.sizes.size()) {
    throw std::invalid_argument("states of " + std::to_string(update.states.size()) +
                                " parameters, " + std::to_string(update.trainable.size()) +
                                " trainable flags, the program has " +
                                std::to_string(context_.sizes.size()) + " parameters");
  }
  bind(inputs);
  plan_prologue();
  const double loss = execute();

  std::vector<Stretch> work;
  stretches(context_, update.trainable, work);
  const int32_t threads = alone_ ? 1 : thread_pool().num_threads();
  const auto pieces = static_cast<int64_t>(work.size());
  partial_.assign(work.size(), 0);
  for_each_piece(pieces, threads, [&](int64_t i) {
    const Stretch& s = work[i];
    const int64_t width = s.table < 0 ? 1 : context_.tables[s.table].width;
    const T* values =
        s.table < 0 ? context_.grads[s.param] : context_.tables[s.table].values.template as<T>();
    partial_[i] = kernels_.sum_of_squares(values + s.begin * width, (s.end - s.begin) * width);
  });
  double squares = 0;
  for (double p : partial_) squares += p;
  const double norm = std::sqrt(squares);
  if (!std::isfinite(loss) || !std::isfinite(norm)) return {loss, norm};

  OptimizerStep step = update.step;
  if (update.max_norm && norm > *update.max_norm) step.grad_scale *= *update.max_norm / norm;
  for_each_piece(pieces, threads, [&](int64_t i) {
    const Stretch& s = work[i];
    T* param = context_.params[s.param];
    const auto [first, second] = update.states[s.param];
    const auto apply = [&](int64_t n, const T* grad, int64_t at) {
      kernels_.update(step, n, grad, param + at, first ? first + at : nullptr,
                      second ? second + at : nullptr);
    };
    if (s.table < 0) {
      apply(s.end - s.begin, context_.grads[s.param] + s.begin, s.begin);
      return;
    }
    const Table& table = context_.tables[s.table];
    for (int64_t slot = s.begin; slot < s.end; ++slot) {
      apply(table.width, table.values.template as<T>() + slot * table.width,
            table.slots[slot] * table.width);
    }
  });
  for (size_t i = 0; i < update.trainable.size(); ++i) {
    if (!update.trainable[i]) continue;
    for (int32_t w : weights_of_[i]) stale_[w] = true;
  }
  return {loss, norm};
}

template StepResult Executor<float>::step(const Inputs<float>&, const Update<float>&);
template StepResult Executor<double>::step(const Inputs<double>&, const Update<double>&);

}  // namespace cavs
