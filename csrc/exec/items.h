// The items of a plan: pieces of work that one thread runs.
#pragma once

#include <cstdint>
#include <variant>

#include "schedule/schedule.h"

namespace cavs {

// Columns, or panels of a weight: [begin, end).
struct Range {
  int32_t begin = 0, end = 0;
};
// Share `number` of `of` equal ones.
struct Share {
  int32_t number = 0, of = 1;
};
// The rows that a sum runs over.
struct SumExtent {
  enum class Over : uint8_t {
    kAll,       // all rows of the instruction's space
    kTask,      // the rows of task `number`
    kDeferred,  // `number` rows of narrow tasks, which DeferRows has copied
  };
  Over over = Over::kAll;
  int32_t number = 0;
};

// A body on `rows`, in the scratch of the running thread.
struct RunBody {
  int32_t body;
  RowRange rows;
};
// An instruction on `rows` of its own space, in the shared scratch of the chunk that begins at row
// `chunk`.
struct RunInstruction {
  int32_t instruction;
  RowRange rows;
  int32_t chunk;
};
// The same for some panels of its weight.
struct RunPanels {
  int32_t instruction;
  RowRange rows;
  Range panels;
  int32_t chunk;
};
// Copy the outputs that a body has computed for `rows` from the shared scratch to the caller.
struct CopyOutputs {
  int32_t body;
  RowRange rows;
};
// Rows and columns of the result of a product of transposed rows, inside a cell of the plan.
struct SumCell {
  int32_t instruction;
  Range rows, columns;
  SumExtent extent;
  int32_t cell;
};
// Columns of a sum of rows.
struct SumColumns {
  int32_t instruction;
  Range columns;
  SumExtent extent;
};
// A share of a sum.
struct SumShare {
  int32_t instruction;
  Share share;
  SumExtent extent;
};
// Copy the operands of a product for `rows` behind the `before` rows that are deferred already.
struct DeferRows {
  int32_t instruction;
  RowRange rows;
  int32_t before;
};
struct PackWeight {
  int32_t weight;
  Range panels;
};
// Zero a share of a dense gradient.
struct ZeroGradient {
  int32_t parameter;
  Share share;
};

using Item = std::variant<RunBody, RunInstruction, RunPanels, CopyOutputs, SumCell, SumColumns,
                          SumShare, DeferRows, PackWeight, ZeroGradient>;

// A visitor of items with one function per type, or one for several.
template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

}  // namespace cavs
