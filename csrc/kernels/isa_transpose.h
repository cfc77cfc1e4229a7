// Transpose a square of numbers, as many lines as a vector has lanes.
#pragma once

#include <utility>

#include "kernels/isa_vector.h"

namespace cavs::CAVS_ISA {
namespace {

// Interleave the lower or upper halves of a and b.
template <int First, class V, int... I>
CAVS_INLINE V by_turns(V a, V b, std::integer_sequence<int, I...>) {
  constexpr int lanes = sizeof...(I);
  return __builtin_shufflevector(a, b, (First + I / 2 + I % 2 * lanes)...);
}

// Each round rotates the bits of an element's index (row, column) by one.
template <class T>
CAVS_INLINE void transpose(Vector<T> (&x)[kLanes<T>]) {
  constexpr int lanes = kLanes<T>;
  using Lanes = std::make_integer_sequence<int, lanes>;
#pragma GCC unroll 4
  for (int done = 1; done < lanes; done *= 2) {
    Vector<T> y[lanes];
#pragma GCC unroll 8
    for (int i = 0; i < lanes / 2; ++i) {
      y[2 * i] = by_turns<0>(x[i], x[i + lanes / 2], Lanes{});
      y[2 * i + 1] = by_turns<lanes / 2>(x[i], x[i + lanes / 2], Lanes{});
    }
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) x[i] = y[i];
  }
}

}  // namespace
}  // namespace cavs::CAVS_ISA
