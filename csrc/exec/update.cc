// The update half of a training step: gradient norm, clipping, optimiser.
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "base/thread_pool.h"
#include "exec/host_io.h"
#include "exec/update_program.h"

namespace cavs {
namespace {

constexpr int64_t kParallelPieces = 16;  // fewer stay on one thread

// Cut the gradients of the last run into chunks.
template <class T>
void cut_into_chunks(const RunContext<T>& c, const std::vector<bool>& trainable,
                     std::vector<GradientPiece<T>>& out) {
  for (size_t i = 0; i < c.grads.size(); ++i) {
    if (!trainable[i] || !c.grads[i]) continue;
    cut_piece<T>({static_cast<int32_t>(i), c.grads[i], nullptr, c.sizes[i], 1, 1, 0}, kUpdateChunk,
                 out);
  }
  for (const Table& t : c.tables) {
    if (!trainable[t.param] || t.dense) continue;
    cut_piece<T>({t.param, t.values.template as<T>(), t.slots.data(),
                  static_cast<int64_t>(t.slots.size()), t.width, t.width, 0},
                 kUpdateChunk, out);
  }
}

// Every thread takes the same pieces in each step, so that parameters and states stay in its cache,
// then pieces of the other threads' shares.
template <class Counters, class F>
void for_each_piece(int64_t pieces, int32_t threads, Counters& counters, F&& f) {
  if (pieces < kParallelPieces || threads == 1) {
    for (int64_t i = 0; i < pieces; ++i) f(i, 0);
    return;
  }
  counters.reset(threads);
  auto& next = counters.data;
  thread_pool().parallel_up_to(threads, [&](int32_t thread, int32_t count) {
    for (int32_t i = 0; i < count; ++i) {
      const int32_t share = (thread + i) % count;
      const int64_t begin = pieces * share / count, end = pieces * (share + 1) / count;
      for (int64_t j; (j = begin + next[share].fetch_add(1, std::memory_order_relaxed)) < end;) {
        f(j, thread);
      }
    }
  });
}

template <class T>
void prefetch(const T* values, int64_t count) {
  constexpr int64_t kLine = 64 / sizeof(T);
  for (int64_t i = 0; i < count; i += kLine) __builtin_prefetch(values + i, 1);
}

}  // namespace

template <class T>
int32_t Executor<T>::threads_of_update() const {
  return alone_ || serial_ ? 1 : thread_pool().num_threads();
}

// Sum of squares of all values, in one order for any number of threads.
template <class T>
double Executor<T>::sum_of_squares(const std::vector<GradientPiece<T>>& work) {
  const auto pieces = static_cast<int64_t>(work.size());
  partial_.assign(work.size(), 0);
  for_each_piece(pieces, threads_of_update(), counters_, [&](int64_t i, int32_t) {
    partial_[i] = kernels_.sum_of_squares(work[i].values, work[i].count * work[i].width);
  });
  double squares = 0;
  for (double p : partial_) squares += p;
  return squares;
}

template <class T>
void Executor<T>::apply_optimizer(const Update<T>& update,
                                  const std::vector<GradientPiece<T>>& work, double scale) {
  const auto pieces = static_cast<int64_t>(work.size());
  size_t room = 0;  // scratch of a thread
  if (update.program) {
    int64_t width = 0;
    for (const GradientPiece<T>& p : work) {
      if (!p.is_contiguous()) width = std::max(width, p.width);
    }
    room = program_scratch(kernels_, *update.program, width);
    update_scratch_.resize(room * threads_of_update());
  }
  for_each_piece(pieces, threads_of_update(), counters_, [&](int64_t i, int32_t thread) {
    const GradientPiece<T>& p = work[i];
    T* param = context_.params[p.param];
    const StateArrays<T>& states = update.states[p.param];
    if (update.program) {
      run_program(kernels_, *update.program, update.numbers_of(p.param), scale, p, param, states,
                  update_scratch_.data() + room * thread);
      return;
    }
    OptimizerStep step = update.of(p.param);
    step.grad_scale *= scale;
    const auto [first, second] = std::pair(states[0], states[1]);
    const auto apply = [&](int64_t n, const T* grad, int64_t at) {
      kernels_.update(step, n, grad, param + at, first ? first + at : nullptr,
                      second ? second + at : nullptr);
    };
    if (p.is_contiguous()) {
      apply(p.count * p.width, p.values, p.offset);
      return;
    }
    const auto row = [&](int64_t r) { return p.offset + (p.rows ? p.rows[r] : r) * p.stride; };
    for (int64_t r = 0; r < p.count; ++r) {
      if (r + 1 < p.count) prefetch(param + row(r + 1), p.width);  // rows are anywhere in the table
      apply(p.width, p.values + r * p.width, row(r));
    }
  });
  ++generation_;
  for (size_t i = 0; i < update.trainable.size(); ++i) {
    if (!update.trainable[i]) continue;
    for (int32_t w : weights_of_[i]) stale_[w] = true;
  }
}

template <class T>
double Executor<T>::apply_gradients(const Update<T>& update, double loss) {
  for (const Factors& f : context_.factors) {
    if (update.trainable[f.param]) multiply(f, context_.grads[f.param]);
  }
  pieces_.clear();
  cut_into_chunks(context_, update.trainable, pieces_);
  const double norm = std::sqrt(sum_of_squares(pieces_));
  if (!std::isfinite(loss) || !std::isfinite(norm)) return norm;
  const bool clip = update.max_norm && norm > *update.max_norm;
  apply_optimizer(update, pieces_, clip ? *update.max_norm / norm : 1);
  return norm;
}

template <class T>
void Executor<T>::add_product(const T* left, const T* right, int64_t rows, int64_t k, int64_t n,
                              T* out) const {
  if (rows == 0) return;
  Source<T> a, b;
  a.data = left, a.stride = k, a.width = static_cast<int32_t>(k);
  b.data = right, b.stride = n, b.width = static_cast<int32_t>(n);
  const Kernels<T>& exact = kernels<T>();  // the same bits on all ranks, for any processor
  std::vector<T> scratch(exact.matmul_tn_scratch(k, n));
  const RowPairs<T> all{&a, 1, &b, 1, 0, rows};
  exact.matmul_tn(&all, 1, k, k, n, 0, n, out, n, true, scratch.data());
}

template <class T>
void Executor<T>::multiply(const Factors& f, T* out) const {
  std::fill_n(out, f.k * f.n, T(0));
  add_product(f.left.as<T>(), f.right.as<T>(), f.rows, f.k, f.n, out);
}

#define CAVS_INSTANTIATE(T)                                                                        \
  template double Executor<T>::sum_of_squares(const std::vector<GradientPiece<T>>&);               \
  template void Executor<T>::apply_optimizer(const Update<T>&,                                     \
                                             const std::vector<GradientPiece<T>>&, double);        \
  template double Executor<T>::apply_gradients(const Update<T>&, double);                          \
  template void Executor<T>::add_product(const T*, const T*, int64_t, int64_t, int64_t, T*) const; \
  template void Executor<T>::multiply(const Factors&, T*) const;
CAVS_INSTANTIATE(float)
CAVS_INSTANTIATE(double)
#undef CAVS_INSTANTIATE

}  // namespace cavs
