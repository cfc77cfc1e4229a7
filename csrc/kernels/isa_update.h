// Optimiser updates in place, by PyTorch's formulas. The gradient is first multiplied by
// grad_scale; weight decay is then added to it, except for AdamW, which shrinks the parameter.
//
//   SGD       p -= lr g
//   momentum  b = momentum b + g;  p -= lr (nesterov ? g + momentum b : b)
//   Adagrad   s += g^2;  p -= lr g / (sqrt(s) + eps)
//   Adam(W)   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//             p -= lr / bias1 * m / (sqrt(v) / sqrt(bias2) + eps)
#pragma once

#include "kernels/isa_vector.h"

namespace cavs::CAVS_ISA {
namespace {

// f(gradient, parameter, state1, state2) changes the last three in place.
template <class T, int States, class F>
CAVS_INLINE void update_each(int64_t n, const T* grad, T* param, T* state1, T* state2, F f) {
  const auto part = [&](int64_t i, int c) {
    Vector<T> p = load_partial(param + i, c), s1{}, s2{};
    if constexpr (States > 0) s1 = load_partial(state1 + i, c);
    if constexpr (States > 1) s2 = load_partial(state2 + i, c);
    f(load_partial(grad + i, c), p, s1, s2);
    store_partial(param + i, p, c);
    if constexpr (States > 0) store_partial(state1 + i, s1, c);
    if constexpr (States > 1) store_partial(state2 + i, s2, c);
  };
  // Up to the first aligned vector: a vector across two cache lines takes longer.
  int64_t head = 0;
  while (head < n && reinterpret_cast<uintptr_t>(param + head) % sizeof(Vector<T>) != 0) ++head;
  if (head > 0) {
    part(0, static_cast<int>(head));
    grad += head, param += head;
    if constexpr (States > 0) state1 += head;
    if constexpr (States > 1) state2 += head;
  }
  for_each_vector<T>(
      n - head,
      [&](int64_t i) {
        Vector<T> p = load(param + i), s1{}, s2{};
        if constexpr (States > 0) s1 = load(state1 + i);
        if constexpr (States > 1) s2 = load(state2 + i);
        f(load(grad + i), p, s1, s2);
        store(param + i, p);
        if constexpr (States > 0) store(state1 + i, s1);
        if constexpr (States > 1) store(state2 + i, s2);
      },
      part);
}

template <class T>
void update(const OptimizerStep& step, int64_t n, const T* grad, T* param, T* state1, T* state2) {
  using V = Vector<T>;
  const T lr = static_cast<T>(step.lr), eps = static_cast<T>(step.eps);
  const T scale = static_cast<T>(step.grad_scale), momentum = static_cast<T>(step.momentum);
  const bool decoupled = step.rule == OptimizerRule::kAdamW;
  const T decay = decoupled ? T(0) : static_cast<T>(step.weight_decay);
  const auto gradient = [=](V g, V p) { return g * scale + p * decay; };
  switch (step.rule) {
    case OptimizerRule::kSgd:
      return update_each<T, 0>(n, grad, param, state1, state2,
                               [=](V g, V& p, V&, V&) { p -= lr * gradient(g, p); });
    case OptimizerRule::kMomentum:
      if (step.nesterov) {
        return update_each<T, 1>(n, grad, param, state1, state2, [=](V g, V& p, V& b, V&) {
          g = gradient(g, p);
          b = momentum * b + g;
          p -= lr * (g + momentum * b);
        });
      }
      return update_each<T, 1>(n, grad, param, state1, state2, [=](V g, V& p, V& b, V&) {
        b = momentum * b + gradient(g, p);
        p -= lr * b;
      });
    case OptimizerRule::kAdagrad:
      return update_each<T, 1>(n, grad, param, state1, state2, [=](V g, V& p, V& s, V&) {
        g = gradient(g, p);
        s += g * g;
        p -= lr * g / (square_root<T>(s) + eps);
      });
    case OptimizerRule::kAdam:
    case OptimizerRule::kAdamW: {
      const T beta1 = static_cast<T>(step.beta1), beta2 = static_cast<T>(step.beta2);
      const T rest1 = static_cast<T>(1 - step.beta1), rest2 = static_cast<T>(1 - step.beta2);
      const T rate = static_cast<T>(step.lr / step.bias1);
      const T root = static_cast<T>(1 / __builtin_sqrt(step.bias2));
      const T keep = decoupled ? static_cast<T>(1 - step.lr * step.weight_decay) : T(1);
      return update_each<T, 2>(n, grad, param, state1, state2, [=](V g, V& p, V& m, V& v) {
        g = gradient(g, p);
        m = beta1 * m + rest1 * g;
        v = beta2 * v + rest2 * (g * g);
        p = p * keep - rate * m / (square_root<T>(v) * root + eps);
      });
    }
  }
}

// In double precision for any T: the norm of a gradient decides how it is clipped.
template <class T>
double sum_of_squares(const T* x, int64_t n) {
  using Wide = Vector<double>;
  Wide sums[2] = {};
  const auto square = [&](Vector<T> v) {
    if constexpr (sizeof(T) == 8) {
      sums[0] += v * v;
    } else {
      typedef float Half __attribute__((vector_size(CAVS_VECTOR_BYTES / 2)));
      Half halves[2];
      __builtin_memcpy(halves, &v, sizeof(v));
      for (int h = 0; h < 2; ++h) {
        const Wide w = __builtin_convertvector(halves[h], Wide);
        sums[h] += w * w;
      }
    }
  };
  for_each_vector<T>(
      n, [&](int64_t i) { square(load(x + i)); },
      [&](int64_t i, int c) { square(load_partial(x + i, c)); });
  return lane_sum<double>(sums[0] + sums[1]);
}

}  // namespace
}  // namespace cavs::CAVS_ISA
