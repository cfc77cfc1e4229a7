// Traits of instructions: everything the engine knows about one, in one record per type. The files
// of exec/instructions/ define them.
#pragma once

#include <vector>

#include "exec/items.h"
#include "exec/program.h"

namespace cavs {

class AccessChecks;
class SizeChecks;
struct Table;
template <class T>
struct Addresses;
template <class T>
struct Bound;
template <class T>
struct BoundProgram;
template <class T>
struct ThreadState;

// How the plan divides an instruction among threads. All but kRows run over all rows of a space, in
// a global stage or at the end of a task.
enum class Cut : uint8_t {
  kRows,     // by rows, in the chunks of a body
  kCells,    // by cells of the result, which sums products of transposed rows; see product.h
  kColumns,  // by columns of the result, which is one row
  kShares,   // in equal shares
  kWhole,    // not at all: it runs on devices only
};

// Columns of the left operand and of the result of a product; otherwise k columns read.
struct ProductShape {
  int64_t k = 0, n = 0;
};

// Operations and values written in a batch.
struct Traffic {
  double flops = 0;
  int64_t written = 0;
};
struct TrafficContext {
  const Program& program;
  int64_t rows;  // rows of the instruction in the batch
  const std::vector<Table>& tables;
};

// How an instruction runs with numbers of type T.
template <class T>
struct Execution {
  // Set addresses other than those of operands and output; may be null.
  void (*bind)(const Program&, const Instruction&, const Addresses<T>&, Bound<T>&) = nullptr;
  // Elements of kernel scratch; null: the larger of k and n.
  size_t (*scratch)(const BoundProgram<T>&, const Bound<T>&, const Kernels<T>&) = nullptr;
  // Cut::kRows: run on some rows.
  void (*rows)(ThreadState<T>&, const Bound<T>&, RowRange rows) = nullptr;
  // With a packed weight: run on some rows, for some panels of the weight only.
  void (*panels)(ThreadState<T>&, const Bound<T>&, RowRange rows, Range panels) = nullptr;
  // Otherwise: run an item that the plan cut (SumCell, SumColumns, SumShare or DeferRows).
  void (*sum)(ThreadState<T>&, const Item&) = nullptr;
};

struct InstructionTraits {
  Cut cut = Cut::kRows;
  bool fused = false;            // reads `loads` and writes `stores`, not `inputs` and `out`
  bool sparse_gradient = false;  // writes the sparse gradient of parameter `argument2`, not `out`
  bool packed_weight = false;    // multiplies by packed weight `weight`

  // Throw std::invalid_argument for an instruction that cannot run.
  void (*validate)(const AccessChecks&, const Instruction&);
  // Throw std::invalid_argument for parameters that are too small; null: `out` is one row.
  void (*validate_sizes)(const SizeChecks&, const Instruction&) = nullptr;
  // Estimated nanoseconds per row of float32; null: those of a copy.
  double (*cost)(const Instruction&) = nullptr;
  // Null: k is the width of all inputs.
  ProductShape (*shape)(const Program&, const Instruction&) = nullptr;
  // Values of int feature `argument` must be below this; null: it reads none.
  int64_t (*index_limit)(const Instruction&, const std::vector<int64_t>& sizes) = nullptr;
  // Null: every row writes the width of `out`.
  Traffic (*traffic)(const TrafficContext&, const Instruction&) = nullptr;

  Execution<float> float32 = {};
  Execution<double> float64 = {};

  template <class T>
  const Execution<T>& execution() const {
    if constexpr (sizeof(T) == sizeof(float)) {
      return float32;
    } else {
      return float64;
    }
  }
};

namespace instructions {
#define CAVS_DECLARE(enumerator, name) extern const InstructionTraits name;
CAVS_INSTRUCTIONS(CAVS_DECLARE)
#undef CAVS_DECLARE
}  // namespace instructions

const InstructionTraits& traits_of(InstructionType type);
inline const InstructionTraits& traits_of(const Instruction& in) { return traits_of(in.type); }
// True if it runs over all rows of a space, or of a task, rather than in chunks of a body.
inline bool is_global(const Instruction& in) { return traits_of(in).cut != Cut::kRows; }
inline bool has_out(const InstructionTraits& traits) {
  return !traits.fused && !traits.sparse_gradient;
}

// Columns of inputs [begin, end).
inline int64_t width_of(const Instruction& in, size_t begin, size_t end) {
  int64_t width = 0;
  for (size_t i = begin; i < end; ++i) width += in.inputs[i].width;
  return width;
}
inline int64_t width_of(const Instruction& in) { return width_of(in, 0, in.inputs.size()); }
// Columns that a store of a fused kernel reaches from the first.
inline int64_t reach_of(const Instruction& in, const MapStoreSpec& store) {
  return int64_t{in.outer - 1} * store.outer_stride +
         (store.mode == StoreMode::kWrite ? in.inner : 1);
}

// Call f(operand) for all that an instruction reads, f(buffer) for all that it writes.
template <class F>
void each_operand(const Instruction& in, F&& f) {
  for (const Operand& o : in.inputs) f(o);
  for (const MapLoadSpec& load : in.loads) f(load.operand);
}
template <class F>
void each_output(const Instruction& in, F&& f) {
  if (in.out.buffer >= 0) f(in.out.buffer);
  for (const MapStoreSpec& store : in.stores) f(store.buffer);
}

}  // namespace cavs
