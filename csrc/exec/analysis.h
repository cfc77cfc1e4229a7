// What the executor knows about a program before it sees a batch: bodies, their costs and scratch,
// and which global stages may run side by side.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/arena.h"
#include "exec/product.h"
#include "exec/program.h"

namespace cavs {

// A scratch buffer of a body and the positions in it between which its values are needed.
struct ScratchUse {
  int32_t buffer;
  int32_t first, last;
};

// Instructions that run together on a chunk of rows.
struct Body {
  int32_t stage;
  Space space;  // of the rows; -1 for a global stage
  std::vector<int32_t> instructions;
  std::vector<int32_t> sums;  // kLoop: over the rows of a task, after its instructions
  std::vector<ScratchUse> scratch;
  bool edges = false;      // some instruction runs over the edges of the rows
  int32_t chunk_rows = 1;  // rows whose values stay in the second-level cache
  int32_t edge_limit = 0;  // edges a chunk may have when it has more than one row
};

// Estimated nanoseconds of one instruction: fixed + rows * row.
struct Cost {
  double fixed = 0, row = 0;
};

struct Analysis {
  std::vector<Body> bodies;
  std::vector<std::vector<int32_t>> bodies_of_stage;  // kLoop: one a kind, -1 where empty
  // Global stages that touch different outputs and do not read each other's run as one step.
  std::vector<int32_t> step_of_stage;
  int32_t steps = 0;
  std::vector<Cost> costs;           // of each instruction
  std::vector<Product> products;     // of each that is the first of a product, else without terms
  std::vector<Lifetime> lifetimes;   // of each buffer, in steps; bytes are set for each batch
  std::vector<bool> zero_gradient;   // parameter: its dense gradient must start from zeros
  std::vector<bool> overwrites;      // instruction: a sum, first of all that add to its gradient
  std::vector<bool> dense_gradient;  // parameter has a kGrad buffer
  // Parameters whose gradient an instruction, or one of a body, writes.
  std::vector<std::vector<int32_t>> gradients_of_instruction, gradients_of_body;
  std::vector<int32_t> gradient_order;  // parameters with a gradient, in the order of completion
  std::vector<int32_t> gradient_stage;  // of each parameter: the last that writes it, or -1
  // Of each instruction: columns of the parameter that it is the gradient of, if it is the first of
  // a product that makes all of it, else 0.
  std::vector<int32_t> result_width;
  // Of each parameter: elements, whole rows, of its gradient that are told together when final.
  std::vector<int64_t> slab;
};

// Where the dense gradients of all parameters lie in one block, in elements: in the order in which
// they are done, each on a line of its own.
struct GradientLayout {
  std::vector<int64_t> at;  // of each parameter; meaningless where it has no dense gradient
  int64_t elements = 0;
};
GradientLayout place_gradients(const Analysis& analysis, size_t element,
                               const std::vector<int64_t>& sizes);

// Whether an instruction is a product whose result is a gradient of `size` elements, all of it.
bool is_whole_product(const Program& program, const Instruction& in, int64_t size);

// `element` is the size of a number in bytes, `sizes` are those of the caller's parameters.
Analysis analyse(const Program& program, size_t element, const std::vector<int64_t>& sizes,
                 ChunkRows rows = {});

}  // namespace cavs
