// An optimiser's rule as a fused elementwise kernel.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exec/executor.h"

namespace cavs {

// Number of elements of scratch that a thread needs to apply `program` to pieces whose rows are not
// contiguous and have at most `width` columns; 0: all are contiguous.
template <class T>
size_t program_scratch(const Kernels<T>& kernels, const UpdateProgram& program, int64_t width);

// Update what `piece` holds the gradient of. The first of `numbers`, which are those of the update,
// multiplies the gradient.
template <class T>
void run_program(const Kernels<T>& kernels, const UpdateProgram& program,
                 const std::vector<double>& numbers, double scale, const GradientPiece<T>& piece,
                 T* param, const StateArrays<T>& states, T* scratch);

}  // namespace cavs
