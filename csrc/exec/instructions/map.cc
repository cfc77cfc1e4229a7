// map: a fused elementwise kernel. Row r of each store is computed by `ops` from the loads of row
// r.
#include <algorithm>

#include "exec/bind.h"
#include "exec/checks.h"
#include "exec/cost.h"
#include "exec/index_arrays.h"
#include "exec/spaces.h"
#include "exec/thread_state.h"

namespace cavs {
namespace {

void validate(const AccessChecks& c, const Instruction& in) {
  const auto loads = static_cast<int32_t>(in.loads.size());
  c.need(in.outer > 0 && in.inner > 0, "iterates over " + std::to_string(in.outer) + " x " +
                                           std::to_string(in.inner) + " elements");
  c.need(in.registers >= loads && in.registers < INT16_MAX,
         std::to_string(in.registers) + " registers for " + std::to_string(loads) + " loads");
  c.need(!in.stores.empty(), "stores nothing");
  c.need(!in.outward || is_vertex(in.space),
         "sums over parents of rows of " + space_name(in.space));
  const auto check_register = [&](int32_t r) {
    c.need(r >= 0 && r < in.registers,
           "register " + std::to_string(r) + " of " + std::to_string(in.registers));
  };
  const auto check_stride = [&](int32_t outer_stride) {
    c.need(outer_stride >= 0, "outer stride " + std::to_string(outer_stride));
  };
  for (const MapLoadSpec& load : in.loads) {
    c.check_operand(load.operand, in.space, is_of_parents(in, load.operand));
    check_stride(load.outer_stride);
    const int64_t columns =
        int64_t{in.outer - 1} * load.outer_stride + (load.scalar ? 1 : in.inner);
    c.need(columns <= load.operand.width, "reads " + std::to_string(columns) +
                                              " columns of an operand of " +
                                              std::to_string(load.operand.width));
  }
  for (const MapOp& op : in.ops) {
    c.need(!in.outward || op.code != MapOpcode::kUniform, "draws numbers for each parent");
    check_register(op.dst);
    check_register(op.a);
    check_register(op.b);
    check_register(op.c);
  }
  for (const MapStoreSpec& store : in.stores) {
    check_register(store.reg);
    c.need(!in.outward || store.mode == StoreMode::kWrite, "sums over parents and over columns");
    check_stride(store.outer_stride);
    c.check_out(store.buffer, store.column, reach_of(in, store), in.space);
  }
}

double cost(const Instruction& in) {
  double a_column = static_cast<double>(in.loads.size() + in.stores.size()) * kElementNs / 2;
  for (const MapOp& op : in.ops)
    a_column += kMapOperations[static_cast<int>(op.code)].cost == MapCost::kFunction
                    ? kFunctionNs
                    : kElementNs / 4;
  return a_column * in.outer * in.inner * (in.outward ? 2 : 1) + 5;
}

Traffic traffic(const TrafficContext& context, const Instruction& in) {
  int64_t written = 0;
  for (const MapStoreSpec& s : in.stores) {
    written += context.rows * in.outer * (s.mode == StoreMode::kWrite ? in.inner : 1);
  }
  return {0, written};
}

template <class T>
void bind(const Program&, const Instruction& in, const Addresses<T>& at, Bound<T>& b) {
  b.map.segments = in.outward ? at.schedule->out_offsets.data() : nullptr;
  b.map.seed = at.seed;
  b.map.step = at.step;
  b.map.row_ids =
      index_arrays(numbers_of_rows(in.space), in.space, *at.schedule, *at.index_features)
          .index.data();
}

template <class T>
size_t scratch(const BoundProgram<T>& bound, const Bound<T>& b, const Kernels<T>& kernels) {
  MapKernel<T> map = b.map;
  map.loads = bound.loads.data() + b.first_load;
  map.stores = bound.stores.data() + b.first_store;
  return kernels.map_scratch(map);
}

template <class T>
void run(ThreadState<T>& thread, const Bound<T>& b, RowRange rows) {
  thread.kernels().map(b.map, rows.begin, rows.end, thread.kernel_memory());
}

}  // namespace

constinit const InstructionTraits instructions::map = {
    .fused = true,
    .validate = validate,
    .cost = cost,
    .traffic = traffic,
    .float32 = {.bind = bind, .scratch = scratch, .rows = run},
    .float64 = {.bind = bind, .scratch = scratch, .rows = run}};

}  // namespace cavs
