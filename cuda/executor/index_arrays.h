// The index arrays that the instructions of a program read on the device.
#pragma once

#include <vector>

#include "cuda/kernels/arguments.h"
#include "cuda/memory/staging.h"
#include "exec/bind.h"
#include "exec/sparse_gradients.h"

namespace cavs::cuda {

// The index arrays of a program, each stored once, and their device addresses.
class IndexArraysOnDevice {
 public:
  IndexArraysOnDevice(const Program& program, size_t sources, size_t loads);

  // Stage the arrays of a batch.
  void stage(const Schedule& schedule, const IndexFeatures& features, Staging& staging);
  void resolve(const Staging& staging);

  struct Pair {
    const int32_t *index = nullptr, *offsets = nullptr;
  };
  // Arrays of a source or a load, numbered as in BoundProgram. Array of an instruction: its labels,
  // or the row numbers of one that draws random numbers (null: the rows themselves).
  Pair of_source(size_t i) const { return pair(source_[i]); }
  Pair of_load(size_t i) const { return pair(load_[i]); }
  const int32_t* of_instruction(size_t i) const { return pair(instruction_[i]).index; }

 private:
  struct Use {
    Operand operand;
    Space space;
    int32_t index = -1, offsets = -1;  // staging items
    Pair pair;
  };
  int32_t use(const Operand& o, Space space);
  Pair pair(int32_t use) const { return use < 0 ? Pair{} : uses_[use].pair; }

  std::vector<Use> uses_;
  std::vector<int32_t> source_, load_, instruction_;  // indices into uses_, or -1
};

// Rows that one lookup adds into the slots of a table: all rows, or those of one task.
struct SlotRows {
  int32_t task;  // -1: all rows
  std::vector<int32_t> offsets, rows, slots;
  int32_t at_offsets = -1, at_rows = -1, at_slots = -1;  // staging items
};

}  // namespace cavs::cuda
