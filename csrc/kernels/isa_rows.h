// Kernels over whole rows: column sums, copies, maxima and products of segments, cross entropy.
#pragma once

#include "kernels/isa_math.h"
#include "kernels/isa_source.h"

namespace cavs::CAVS_ISA {
namespace {

// Column sums. Four rows at a time, each still added in ascending order.
template <class T>
void sum_rows(const Source<T>& source, int64_t r0, int64_t r1, T* out, bool accumulate) {
  const int64_t n = source.width;
  if (!accumulate) fill(out, T(0), n);
  // Segments: every row of every segment is one more row.
  const bool segments = source.map == RowMap::kSegmentSum;
  const int64_t first = segments && r0 < r1 ? source.offsets[r0] : r0;
  const int64_t last = segments && r0 < r1 ? source.offsets[r1] : r1;
  const T* rows[4];
  int found = 0;
  for (int64_t j = first; j < last; ++j) {
    const T* row = segments ? segment_row(source, j) : plain_row(source, j);
    if (row == nullptr) continue;
    rows[found++] = row;
    if (found < 4) continue;
    found = 0;
    for_each_vector<T>(
        n,
        [&](int64_t i) {
          store(out + i,
                (((load(out + i) + load(rows[0] + i)) + load(rows[1] + i)) + load(rows[2] + i)) +
                    load(rows[3] + i));
        },
        [&](int64_t i, int c) {
          Vector<T> sum = load_partial(out + i, c);
          for (const T* r : rows) sum += load_partial(r + i, c);
          store_partial(out + i, sum, c);
        });
  }
  for (int i = 0; i < found; ++i) add(out, out, rows[i], n);
}

template <class T>
void copy_rows(const Source<T>& source, int64_t r0, int64_t r1, T* out, int64_t stride,
               int64_t base) {
  for (int64_t r = r0; r < r1; ++r) copy_row(source, r, 0, source.width, out + (r - base) * stride);
}

// out[r] = f(next, f of the rows before) over the segment of r, `empty` if it has no row.
template <class T, class F>
CAVS_INLINE void fold_segments(const Source<T>& source, int64_t r0, int64_t r1, T* out,
                               int64_t stride, int64_t base, T empty, F f) {
  const int64_t n = source.width;
  for (int64_t r = r0; r < r1; ++r) {
    T* folded = out + (r - base) * stride;
    bool first = true;
    for (int64_t j = source.offsets[r]; j < source.offsets[r + 1]; ++j) {
      const T* row = segment_row(source, j);
      if (row == nullptr) continue;
      if (first) {
        copy(folded, row, n);
      } else {
        for_each_vector<T>(
            n, [&](int64_t i) { store(folded + i, f(load(row + i), load(folded + i))); },
            [&](int64_t i, int c) {
              store_partial(folded + i, f(load_partial(row + i, c), load_partial(folded + i, c)),
                            c);
            });
      }
      first = false;
    }
    if (first) fill(folded, empty, n);
  }
}

template <class T>
void segment_max(const Source<T>& source, int64_t r0, int64_t r1, T* out, int64_t stride,
                 int64_t base) {
  fold_segments(source, r0, r1, out, stride, base, T(0),
                [](Vector<T> x, Vector<T> best) { return maximum<T>(x, best); });
}

template <class T>
void segment_product(const Source<T>& source, int64_t r0, int64_t r1, T* out, int64_t stride,
                     int64_t base) {
  fold_segments(source, r0, r1, out, stride, base, T(1),
                [](Vector<T> x, Vector<T> product) { return product * x; });
}

// Sum of exp(x - shift); the terms also go to `out` unless it is null.
template <class T>
T exp_sum(const T* x, int64_t n, T shift, T* out) {
  Vector<T> sum{};
  for_each_vector<T>(
      n,
      [&](int64_t i) {
        const Vector<T> e = exponential<T>(load(x + i) - shift);
        if (out != nullptr) store(out + i, e);
        sum += e;
      },
      [&](int64_t i, int c) {
        const Vector<T> e = exponential<T>(load_partial(x + i, c) - shift);
        if (out != nullptr) store_partial(out + i, e, c);
        sum += iota<T>() < c ? e : Vector<T>{};
      });
  return lane_sum<T>(sum);
}

// Factor of the gradient of row r.
template <class T>
T slope_of(const Source<T>* slope, int64_t r) {
  if (slope == nullptr) return T(1);
  const T* row = plain_row(*slope, r);
  return row != nullptr ? *row : T(0);
}

// Few classes: as many rows at once as a vector has lanes, one vector per class. The results of a
// row do not depend on its position.
constexpr int64_t kFewClasses = 16;
template <class T>
void cross_entropy_of_few(const Source<T>& logits, const Source<T>* slope, const int32_t* label,
                          int64_t r0, int64_t r1, T* loss, int64_t loss_stride, int64_t loss_base,
                          T* grad, int64_t grad_stride, int64_t grad_base) {
  constexpr int64_t kRows = kLanes<T>;
  const int64_t n = logits.width;
  alignas(64) T x[kFewClasses][kRows], p[kFewClasses][kRows];
  for (int64_t r = r0; r < r1; r += kRows) {
    const int64_t rows = r1 - r < kRows ? r1 - r : kRows;
    for (int64_t i = 0; i < kRows; ++i) {
      const T* row = i < rows && label[r + i] >= 0 ? plain_row(logits, r + i) : nullptr;
      for (int64_t c = 0; c < n; ++c) x[c][i] = row != nullptr ? row[c] : T(0);
    }
    Vector<T> top = load(x[0]), sum{};
    for (int64_t c = 1; c < n; ++c) top = maximum<T>(top, load(x[c]));
    for (int64_t c = 0; c < n; ++c) {
      const Vector<T> e = exponential<T>(load(x[c]) - top);
      store(p[c], e);
      sum += e;
    }
    const Vector<T> total = logarithm<T>(sum) + top, inverse = broadcast(T(1)) / sum;
    for (int64_t c = 0; c < n; ++c) store(p[c], load(p[c]) * inverse);
    for (int64_t i = 0; i < rows; ++i) {
      const int32_t y = label[r + i];
      T* l = loss != nullptr ? loss + (r + i - loss_base) * loss_stride : nullptr;
      T* g = grad != nullptr ? grad + (r + i - grad_base) * grad_stride : nullptr;
      const T truth = y >= 0 && y < n ? x[y][i] : static_cast<T>(__builtin_nan(""));
      if (l != nullptr) *l = y < 0 ? T(0) : total[i] - truth;
      if (g == nullptr) continue;
      const T by = slope_of(slope, r + i);
      if (y >= 0 && y < n) p[y][i] -= T(1);
      for (int64_t c = 0; c < n; ++c) g[c] = (y < 0 ? T(0) : p[c][i]) * by;
    }
  }
}

template <class T>
void cross_entropy(const Source<T>& logits, const Source<T>* slope, const int32_t* label,
                   int64_t r0, int64_t r1, T* loss, int64_t loss_stride, int64_t loss_base, T* grad,
                   int64_t grad_stride, int64_t grad_base) {
  const int64_t n = logits.width;
  if (n <= kFewClasses) {
    cross_entropy_of_few(logits, slope, label, r0, r1, loss, loss_stride, loss_base, grad,
                         grad_stride, grad_base);
    return;
  }
  for (int64_t r = r0; r < r1; ++r) {
    T* l = loss != nullptr ? loss + (r - loss_base) * loss_stride : nullptr;
    T* g = grad != nullptr ? grad + (r - grad_base) * grad_stride : nullptr;
    const int32_t y = label[r];
    const T* x = plain_row(logits, r);
    const T by = slope_of(slope, r);
    if (y < 0 || x == nullptr) {
      // Without logits.
      const T p = y < 0 ? T(0) : T(1) / static_cast<T>(n);
      if (l != nullptr) *l = y < 0 ? T(0) : logarithm<T>(broadcast(static_cast<T>(n)))[0];
      if (g != nullptr) fill(g, p * by, n);
      if (g != nullptr && y >= 0 && y < n) g[y] = (p - T(1)) * by;
      continue;
    }
    const T top = max_of(x, n);
    const T truth = y < n ? x[y] : static_cast<T>(__builtin_nan(""));  // read before g is written
    const T sum = exp_sum(x, n, top, g);
    if (l != nullptr) *l = (logarithm<T>(broadcast(sum))[0] + top) - truth;
    if (g == nullptr) continue;
    const T inverse = T(1) / sum, own = y < n ? g[y] * inverse - T(1) : T(0);
    for_each_vector<T>(
        n, [&](int64_t i) { store(g + i, load(g + i) * inverse * by); },
        [&](int64_t i, int c) { store_partial(g + i, load_partial(g + i, c) * inverse * by, c); });
    if (y < n) g[y] = own * by;
  }
}

}  // namespace
}  // namespace cavs::CAVS_ISA
