// The work of one batch as a list of segments: what may run at once, and in which pieces.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/analysis.h"
#include "exec/spaces.h"
#include "schedule/schedule.h"

namespace cavs {

enum class ItemKind : uint8_t {
  kBody,         // body `id` on rows [r0, r1), scratch of the running thread
  kInstruction,  // instruction `id` on [r0, r1) of its own rows; shared scratch, chunk from row `a`
  kPanels,       // instruction `id` on [r0, r1), panels [a, b); shared scratch, chunk from row `c`
  kTransposed,   // product `id`: rows [r0, r1) of the result, columns [a, b) of a cell
  kColumns,      // column sum `id`: columns [a, b)
  kSlots,        // lookup gradient `id`: part a of b of its table rows
  kStage,        // product `id`: copies rows [r0, r1) of its operands, behind `a` that wait
  kPack,         // weight `id`: panels [a, b)
  kZero,         // dense gradient `id`: part a of b
};
struct Item {
  ItemKind kind;
  int32_t id;
  int32_t r0 = 0, r1 = 0;
  int32_t a = 0, b = 0, c = 0;
  int32_t cell = 0;  // kTransposed: of the plan
};

// A sum (kTransposed, kColumns, kSlots) with c > 0 is over the rows of task c - 1 alone; a product
// with c < 0 over -c rows that wait; others are over all rows.

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
  // Products of loops: elements before the rows that wait of each instruction, and of all.
  std::vector<int64_t> staged_at;
  int64_t staged = 0;
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
