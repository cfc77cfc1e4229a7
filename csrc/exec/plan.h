// The work of one batch as a list of phases, whose items may run at once.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/analysis.h"
#include "exec/items.h"
#include "exec/spaces.h"
#include "schedule/schedule.h"

namespace cavs {

// Items of one phase may run at once; a phase starts when the one before is completed. A serial
// phase runs its items in order on the first thread that is free.
struct Phase {
  int32_t first, count;
  int32_t stage;
  bool serial;
  int32_t units() const { return serial ? 1 : count; }
};

struct Plan {
  std::vector<Item> items;
  std::vector<Phase> phases;
  std::vector<Product::Cell> cells;  // rows of all terms that reach a cell are summed
  int32_t edge_rows = 0;  // maximum number of edges of a chunk of more than one row, or of scratch
  // Memory of deferred rows, in elements: offset for each product of a loop, and size.
  std::vector<int64_t> deferred_at;
  int64_t deferred = 0;
  void clear();
};

struct PlanOptions {
  int32_t threads;
  int32_t panel;
  bool one_by_one;  // one row at a time
  bool slabs;       // gradients slab by slab, because other threads wait for them
};
// Estimated nanoseconds of all work on one thread.
double plan_cost(const Program& program, const Analysis& analysis, const Schedule& schedule,
                 const Spaces& spaces);
void make_plan(const Program& program, const Analysis& analysis, const Schedule& schedule,
               const Spaces& spaces, const PlanOptions& options, Plan& plan);

}  // namespace cavs
