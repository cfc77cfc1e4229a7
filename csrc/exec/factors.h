// Sufficient factors: gradients kept as the two operands X and dY of their product X^T dY, which
// are sent instead of the product.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/arena.h"
#include "exec/bound.h"
#include "exec/plan.h"

namespace cavs {

struct Factors {
  int32_t param;
  int64_t k, n;  // columns of X and of dY
  std::vector<int32_t> instructions;
  std::vector<int64_t> first_row;  // per instruction, in this batch
  int64_t rows = 0;
  Memory left, right;
};

// Find the factors of the gradient of `param`; false unless it is a sum of products over whole
// rows.
bool make_factors(const Program& program, const Analysis& analysis, int32_t param, int64_t size,
                  Factors& out);
// Allocate their rows for a batch; count_factor_rows only counts them.
template <class T>
void bind_factors(Factors& factors, const BoundProgram<T>& bound, const Spaces& spaces);
template <class T>
void count_factor_rows(Factors& factors, const BoundProgram<T>& bound, const Spaces& spaces);
// Copy the operands of one instruction.
template <class T>
void copy_factors(const Factors& factors, int32_t instruction, const Bound<T>& b,
                  const Source<T>* sources, RowRange rows, const Kernels<T>& kernels);

}  // namespace cavs
