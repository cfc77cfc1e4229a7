// The operations of the block interpreter on blocks of n values.
#pragma once

#include "kernels/isa_math.h"
#include "kernels/isa_source.h"
#include "kernels/isa_uniform.h"

namespace cavs::CAVS_ISA {
namespace {

// Where an op writes: scratch is padded to whole vectors, memory is not. A partial store could not
// be forwarded to the next op's load, which would wait until it reached the cache.
template <class T>
struct MapOutput {
  T* data;
  bool padded;
};

template <class T>
CAVS_INLINE void store_last(MapOutput<T> out, int64_t i, Vector<T> v, int count) {
  if (out.padded)
    store(out.data + i, v);
  else
    store_partial(out.data + i, v, count);
}
template <class T, class F>
CAVS_INLINE void unary(MapOutput<T> out, const T* a, int64_t n, F f) {
  for_each_vector<T>(
      n, [&](int64_t i) { store(out.data + i, f(load(a + i))); },
      [&](int64_t i, int c) { store_last(out, i, f(load_partial(a + i, c)), c); });
}
template <class T, class F>
CAVS_INLINE void binary(MapOutput<T> out, const T* a, const T* b, int64_t n, F f) {
  for_each_vector<T>(
      n, [&](int64_t i) { store(out.data + i, f(load(a + i), load(b + i))); },
      [&](int64_t i, int c) {
        store_last(out, i, f(load_partial(a + i, c), load_partial(b + i, c)), c);
      });
}
template <class T, class F>
CAVS_INLINE void ternary(MapOutput<T> out, const T* a, const T* b, const T* d, int64_t n, F f) {
  for_each_vector<T>(
      n, [&](int64_t i) { store(out.data + i, f(load(a + i), load(b + i), load(d + i))); },
      [&](int64_t i, int c) {
        const Vector<T> x = load_partial(a + i, c), y = load_partial(b + i, c);
        store_last(out, i, f(x, y, load_partial(d + i, c)), c);
      });
}

template <class T>
void run_op(const MapOp& op, const T* const* reg, MapOutput<T> out, int64_t n) {
  using V = Vector<T>;
  const T* a = op.a >= 0 ? reg[op.a] : nullptr;  // an operand that does not exist may be -1
  const T* b = op.b >= 0 ? reg[op.b] : nullptr;
  const V zero{}, one = broadcast(T(1));
  switch (op.code) {
    case MapOpcode::kConstant:
      return fill(out.data, static_cast<T>(op.imm), n);
    case MapOpcode::kCopy:
      return unary(out, a, n, [](V x) { return x; });
    case MapOpcode::kAdd:
      return binary(out, a, b, n, [](V x, V y) { return x + y; });
    case MapOpcode::kSub:
      return binary(out, a, b, n, [](V x, V y) { return x - y; });
    case MapOpcode::kMul:
      return binary(out, a, b, n, [](V x, V y) { return x * y; });
    case MapOpcode::kDiv:
      return binary(out, a, b, n, [](V x, V y) { return x / y; });
    case MapOpcode::kMax:
      return binary(out, a, b, n, [](V x, V y) { return maximum<T>(x, y); });
    case MapOpcode::kMin:
      return binary(out, a, b, n, [](V x, V y) { return minimum<T>(x, y); });
    case MapOpcode::kNeg:
      return unary(out, a, n, [](V x) { return -x; });
    case MapOpcode::kAbs:
      return unary(out, a, n,
                   [](V x) { return from_bits<T>(bits<T>(x) & ~bits<T>(broadcast(T(-0.0)))); });
    case MapOpcode::kExp:
      return unary(out, a, n, [](V x) { return exponential<T>(x); });
    case MapOpcode::kLog:
      return unary(out, a, n, [](V x) { return logarithm<T>(x); });
    case MapOpcode::kTanh:
      return unary(out, a, n, [](V x) { return hyperbolic_tangent(x); });
    case MapOpcode::kSigmoid:
      return unary(out, a, n, [](V x) { return sigmoid(x); });
    case MapOpcode::kSqrt:
      return unary(out, a, n, [](V x) { return square_root<T>(x); });
    case MapOpcode::kGreater:
      return binary(out, a, b, n, [=](V x, V y) { return x > y ? one : zero; });
    case MapOpcode::kGreaterEqual:
      return binary(out, a, b, n, [=](V x, V y) { return x >= y ? one : zero; });
    case MapOpcode::kEqual:
      return binary(out, a, b, n, [=](V x, V y) { return x == y ? one : zero; });
    case MapOpcode::kSelect:
      return ternary(out, a, b, reg[op.c], n, [=](V x, V y, V z) { return x != zero ? y : z; });
    case MapOpcode::kFma:
      return ternary(out, a, b, reg[op.c], n, [](V x, V y, V z) { return x * y + z; });
    case MapOpcode::kUniform:
      return;  // run_block draws it: it needs the lines
  }
}

}  // namespace
}  // namespace cavs::CAVS_ISA
