// The operations of fused elementwise kernels: one list, from which the opcodes, their names and
// the interpreter are generated. cavs/ops/primitives.py says what they mean in NumPy and CUDA;
// docs/operators.md shows how to add one.
#pragma once

#include <cstddef>
#include <cstdint>

// X(enumerator, name, operands, cost, expression): the expression computes a vector from the
// operands x, y and z; `one` and `zero` are vectors of 1 and 0. Operations without operands are
// written by hand: `constant` (imm), `column` (the number of the column inside its block) and
// `uniform` (counter-based numbers in [0, 1), a function of seed, step, imm = stream, row id and
// column).
// clang-format off
#define CAVS_MAP_OPERATIONS(X)                                                       \
  X(kConstant, constant, 0, kElement, )                                              \
  X(kColumn, column, 0, kElement, )                                                  \
  X(kCopy, copy, 1, kElement, x)                                                     \
  X(kAdd, add, 2, kElement, x + y)                                                   \
  X(kSub, sub, 2, kElement, x - y)                                                   \
  X(kMul, mul, 2, kElement, x * y)                                                   \
  X(kDiv, div, 2, kElement, x / y)                                                   \
  X(kMax, max, 2, kElement, maximum<T>(x, y))                                        \
  X(kMin, min, 2, kElement, minimum<T>(x, y))                                        \
  X(kNeg, neg, 1, kElement, -x)                                                      \
  X(kAbs, abs, 1, kElement, from_bits<T>(bits<T>(x) & ~bits<T>(broadcast(T(-0.0))))) \
  X(kExp, exp, 1, kFunction, exponential<T>(x))                                      \
  X(kLog, log, 1, kFunction, logarithm<T>(x))                                        \
  X(kTanh, tanh, 1, kFunction, hyperbolic_tangent(x))                                \
  X(kSigmoid, sigmoid, 1, kFunction, sigmoid(x))                                     \
  X(kSin, sin, 1, kFunction, sine<T>(x))                                             \
  X(kCos, cos, 1, kFunction, cosine<T>(x))                                           \
  X(kSqrt, sqrt, 1, kElement, square_root<T>(x))                                     \
  X(kGreater, greater, 2, kElement, x > y ? one : zero)                              \
  X(kGreaterEqual, greater_equal, 2, kElement, x >= y ? one : zero)                  \
  X(kEqual, equal, 2, kElement, x == y ? one : zero)                                 \
  X(kSelect, select, 3, kElement, x != zero ? y : z)                                 \
  X(kFma, fma, 3, kElement, x * y + z)                                               \
  X(kUniform, uniform, 0, kFunction, )
// clang-format on

namespace cavs {

enum class MapOpcode : uint8_t {
#define CAVS_ENUMERATOR(enumerator, name, operands, cost, ...) enumerator,
  CAVS_MAP_OPERATIONS(CAVS_ENUMERATOR)
#undef CAVS_ENUMERATOR
};

// Classes of cost, for estimates.
enum class MapCost : uint8_t { kElement, kFunction };

struct MapOperation {
  const char* name;  // in programs
  int operands;      // registers that it reads: a, then b, then c
  MapCost cost;
};

// By opcode.
constexpr MapOperation kMapOperations[] = {
#define CAVS_OPERATION(enumerator, name, operands, cost, ...) {#name, operands, MapCost::cost},
    CAVS_MAP_OPERATIONS(CAVS_OPERATION)
#undef CAVS_OPERATION
};
constexpr size_t kNumMapOperations = sizeof(kMapOperations) / sizeof(MapOperation);
static_assert(kNumMapOperations == static_cast<size_t>(MapOpcode::kUniform) + 1);

}  // namespace cavs
