// Constants of the cost estimates of instructions, in nanoseconds.
#pragma once

#include "exec/instruction.h"

namespace cavs {

constexpr double kCallNs = 60;          // entering a kernel
constexpr double kMulAddNs = 1.0 / 45;  // one multiply-add of a float product
constexpr double kElementNs = 0.15;     // loading, storing or combining one element of a map
constexpr double kFunctionNs = 0.5;     // exp, tanh, ... of one element
constexpr double kNarrow = 16;          // columns of a vector

// A row that is copied.
inline double copy_cost(const Instruction& in) { return in.inputs[0].width * kElementNs + 3; }

}  // namespace cavs
