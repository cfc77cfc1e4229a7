// State of a thread during a run: its copy of the bound instructions and its scratch; and the
// context that all threads share.
#pragma once

#include <vector>

#include "exec/arena.h"
#include "exec/bound.h"
#include "exec/factors.h"
#include "exec/plan.h"
#include "exec/sparse_gradients.h"

namespace cavs {

// An output that is copied to the caller chunk by chunk: row r goes to row order[r] of `data`, or
// to row r without an order.
template <class T>
struct CopiedOutput {
  int32_t buffer, width, stage;
  const int32_t* order;
  T* data;
};

// Shared by the threads of a run; constant during the run.
template <class T>
struct RunContext {
  const Program* program;
  const Analysis* analysis;
  const Kernels<T>* kernels;
  const Schedule* schedule;
  const Spaces* spaces;
  const BoundProgram<T>* bound;
  const Plan* plan;
  const T* zeros;  // one for each column of the widest gradient of a product
  const std::vector<Patch>* patches;
  std::vector<size_t> scratch_offsets;  // per buffer, in bytes
  size_t scratch_bytes = 0;
  Memory shared_scratch;          // for tasks that all threads work on
  std::vector<size_t> shared_at;  // where the scratch of an instruction's body begins, in bytes
  size_t kernel_elements = 0;     // scratch of the kernels
  std::vector<Memory> packed;     // per weight
  Memory deferred;                // operands of products that DeferRows copies
  std::vector<const T*> packed_data;
  std::vector<T*> params, grads;  // grads: null without a dense gradient
  std::vector<int64_t> sizes;
  std::vector<Table> tables;
  std::vector<Factors> factors;
  std::vector<int32_t> factors_of_instruction;  // or -1
  std::vector<CopiedOutput<T>> copied_outputs;  // those in scratch
  bool profiling = false;
};

template <class T>
struct ThreadState {
  explicit ThreadState(const RunContext<T>& context) : run(context) {}

  const RunContext<T>& run;
  BoundProgram<T> bound;  // a copy: addresses in scratch differ
  Memory scratch, kernel_scratch;
  // The last product: its operands, cut to the cell, and its terms, for reports.
  std::vector<Source<T>> cut;
  std::vector<RowPairs<T>> pairs;
  std::vector<int32_t> terms;

  const Kernels<T>& kernels() const { return *run.kernels; }
  const Source<T>* sources(const Bound<T>& b) const { return bound.sources.data() + b.first; }
  T* kernel_memory() const { return kernel_scratch.template as<T>(); }
  int32_t panels(int64_t n) const {
    return static_cast<int32_t>((n + kernels().panel - 1) / kernels().panel);
  }
  // The rows of an instruction that a sum runs over.
  RowRange rows_of(SumExtent extent, int32_t instruction) const {
    if (extent.over == SumExtent::Over::kDeferred) return {0, extent.number};
    const Space space = bound.instructions[instruction].space;
    if (extent.over == SumExtent::Over::kAll) return run.spaces->rows(space);
    const RowRange rows = run.schedule->tasks[extent.number].rows;
    return is_vertex(space) ? rows : run.spaces->related(rows, relation_of(space));
  }
};

}  // namespace cavs
