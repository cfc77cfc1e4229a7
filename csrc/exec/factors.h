// Gradients handed out as the two operands of their products, X and dY of X^T dY, for those who
// send the operands rather than the product (sufficient factors).
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
  std::vector<int64_t> first_row;  // of each instruction, in this batch
  int64_t rows = 0;
  Memory left, right;
};

// Where the gradient of `param` is a sum of products over whole rows: its factors; else none.
bool make_factors(const Program& program, const Analysis& analysis, int32_t param, int64_t size,
                  Factors& out);
// Their rows in a batch, as the engine's memory; count_factor_rows only counts them.
template <class T>
void bind_factors(Factors& factors, const BoundProgram<T>& bound, const Spaces& spaces);
template <class T>
void count_factor_rows(Factors& factors, const BoundProgram<T>& bound, const Spaces& spaces);
// Copies the operands of one instruction to their place.
template <class T>
void copy_factors(const Factors& factors, int32_t instruction, const Bound<T>& b,
                  const Source<T>* sources, RowRange rows, const Kernels<T>& kernels);

}  // namespace cavs
