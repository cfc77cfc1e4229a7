// Sparse gradients of looked-up tables: one slot per row of the table that the batch touches.
// The functions are in instructions/lookup_grad.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/arena.h"
#include "exec/bound.h"
#include "exec/plan.h"

namespace cavs {

// The rows that one instruction adds to each slot, ascending.
struct Lookup {
  int32_t instruction;
  bool first;                    // the first of its table: writes instead of adding
  bool looped;                   // runs task by task
  std::vector<int32_t> offsets;  // slots + 1
  std::vector<int32_t> rows;
  std::vector<int32_t> slot_of;  // looped: row -> slot, or -1
};

struct Table {
  int32_t param;
  int64_t width;
  bool dense;                    // adds to the dense gradient of the parameter instead
  std::vector<int32_t> slots;    // slot -> row of the table, in order of first use
  std::vector<int32_t> slot_of;  // row of the table -> slot, or -1 between runs
  std::vector<Lookup> lookups;
  Memory values;  // slots x width, unless dense
};

std::vector<Table> make_tables(const Program& program, const std::vector<bool>& dense,
                               const std::vector<int64_t>& sizes);
// Sort the rows of the batch into slots.
template <class T>
void bind_table(Table& table, const BoundProgram<T>& bound, const Spaces& spaces);

}  // namespace cavs
