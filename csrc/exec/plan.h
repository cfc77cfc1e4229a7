// The work of one batch as a list of segments: what may run at once, and in which pieces.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/analysis.h"
#include "exec/items.h"
#include "exec/spaces.h"
#include "schedule/schedule.h"

namespace cavs {

// Items of one segment may run at once; a segment starts when the one before is done. A serial
// segment runs its items in order on whichever thread comes first.
struct Segment {
  int32_t first, count;
  int32_t stage;
  bool serial;
  int32_t units() const { return serial ? 1 : count; }
};

struct Plan {
  std::vector<Item> items;
  std::vector<Segment> segments;
  std::vector<Product::Cell> cells;  // of results: rows of all terms that reach one are summed
  int32_t edge_rows = 0;  // most edges in one chunk that has more than one row or scratch
  // Memory of deferred rows, in elements: where that of each product of a loop begins, and all.
  std::vector<int64_t> deferred_at;
  int64_t deferred = 0;
  void clear();
};

struct PlanOptions {
  int32_t threads;
  int32_t panel;
  bool one_by_one;  // one row at a time
  bool slabs;       // gradients slab by slab, for others who wait for them
};
// Estimated nanoseconds of all work on one thread.
double plan_cost(const Program& program, const Analysis& analysis, const Schedule& schedule,
                 const Spaces& spaces);
void make_plan(const Program& program, const Analysis& analysis, const Schedule& schedule,
               const Spaces& spaces, const PlanOptions& options, Plan& plan);

}  // namespace cavs
