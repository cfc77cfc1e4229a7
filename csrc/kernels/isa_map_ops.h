// The operations of the block interpreter, on blocks of n values.
#pragma once

#include "kernels/isa_math.h"
#include "kernels/isa_source.h"
#include "kernels/isa_uniform.h"

namespace cavs::CAVS_ISA {
namespace {

// Output of an operation: scratch is padded to whole vectors, memory is not. A partial store could
// not be forwarded to the load of the next operation, which would wait until it reached the cache.
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
  const T* a = op.a >= 0 ? reg[op.a] : nullptr;  // an unused operand may be -1
  const T* b = op.b >= 0 ? reg[op.b] : nullptr;
  const V zero{}, one = broadcast(T(1));
  // One case per operation that has operands.
#define CAVS_RUN_0(enumerator, ...)
#define CAVS_RUN_1(enumerator, ...) \
  case MapOpcode::enumerator:       \
    return unary(out, a, n, [=](V x) { return __VA_ARGS__; });
#define CAVS_RUN_2(enumerator, ...) \
  case MapOpcode::enumerator:       \
    return binary(out, a, b, n, [=](V x, V y) { return __VA_ARGS__; });
#define CAVS_RUN_3(enumerator, ...) \
  case MapOpcode::enumerator:       \
    return ternary(out, a, b, reg[op.c], n, [=](V x, V y, V z) { return __VA_ARGS__; });
#define CAVS_RUN(enumerator, name, operands, cost, ...) CAVS_RUN_##operands(enumerator, __VA_ARGS__)
  switch (op.code) {
    CAVS_MAP_OPERATIONS(CAVS_RUN)
    case MapOpcode::kConstant:
      return fill(out.data, static_cast<T>(op.imm), n);
    case MapOpcode::kColumn:
    case MapOpcode::kUniform:
      return;  // written by run_block, which knows the lines
  }
#undef CAVS_RUN
#undef CAVS_RUN_3
#undef CAVS_RUN_2
#undef CAVS_RUN_1
#undef CAVS_RUN_0
}

}  // namespace
}  // namespace cavs::CAVS_ISA
