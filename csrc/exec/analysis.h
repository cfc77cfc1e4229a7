// Analysis of a program before any batch: bodies, their costs and scratch, and the global stages
// that may run concurrently.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/arena.h"
#include "exec/product.h"
#include "exec/program.h"

namespace cavs {

// A scratch buffer of a body, and the positions in the body between which its values are live.
struct ScratchUse {
  int32_t buffer;
  int32_t first, last;
};

// Instructions that run together on a chunk of rows.
struct Body {
  int32_t stage;
  Space space;  // space of the rows; -1 for a global stage
  std::vector<int32_t> instructions;
  std::vector<int32_t> sums;  // kLoop: sums over the rows of a task, after its instructions
  std::vector<ScratchUse> scratch;
  std::vector<int32_t> outputs;    // scratch buffers that are outputs of the program
  std::vector<int32_t> relations;  // some instruction runs over rows related to its own
  int32_t chunk_rows = 1;          // rows whose values stay in the second-level cache
  int32_t edge_limit = 0;  // maximum number of edges, or pairs, of a chunk of more than one row
};

// Estimated nanoseconds of one instruction: fixed + rows * row.
struct Cost {
  double fixed = 0, row = 0;
};

struct Analysis {
  std::vector<Body> bodies;
  std::vector<std::vector<int32_t>> bodies_of_stage;  // kLoop: one per kind, -1 if empty
  // Global stages that write different outputs and do not read each other's run as one step.
  std::vector<int32_t> step_of_stage;
  int32_t steps = 0;
  std::vector<Cost> costs;  // per instruction
  std::vector<Product>
      products;  // per instruction; without terms unless it is the first of a product
  std::vector<Lifetime> lifetimes;  // per buffer, in steps; bytes are set for each batch
  std::vector<bool> zero_gradient;  // parameter: its dense gradient must start from zeros
  std::vector<bool>
      overwrites;  // instruction: the first sum into its gradient, which writes all of it
  std::vector<bool> dense_gradient;  // parameter has a kGrad buffer
  // Parameters whose gradient an instruction, or an instruction of a body, writes.
  std::vector<std::vector<int32_t>> gradients_of_instruction, gradients_of_body;
  std::vector<int32_t> gradient_order;  // parameters with a gradient, in the order of completion
  std::vector<int32_t> gradient_stage;  // per parameter: the last stage that writes it, or -1
  // Per instruction: columns of the parameter whose gradient it computes, if it is the first of
  // a product that computes all of it, else 0.
  std::vector<int32_t> result_width;
  // Per parameter: elements (whole rows) of its gradient that are reported as final together.
  std::vector<int64_t> slab;
};

// Layout of all dense gradients in one block, in elements: in the order in which they are
// completed, each on cache lines of its own.
struct GradientLayout {
  std::vector<int64_t> at;  // per parameter; undefined without a dense gradient
  int64_t elements = 0;
};
GradientLayout lay_out_dense_gradients(const Analysis& analysis, size_t element,
                                       const std::vector<int64_t>& sizes);

// True if an instruction is a product that computes all `size` elements of a gradient.
bool is_whole_product(const Program& program, const Instruction& in, int64_t size);

// `element` is the size of a number in bytes, `sizes` are the sizes of the parameters.
Analysis analyse(const Program& program, size_t element, const std::vector<int64_t>& sizes,
                 ChunkRows rows = {});

}  // namespace cavs
