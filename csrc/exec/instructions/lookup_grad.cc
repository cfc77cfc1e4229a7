// lookup_grad: the sparse gradient of parameter `argument2`. Row r of inputs[0] is added to the row
// that int feature `argument` names; a negative index drops it.
#include "exec/bind.h"
#include "exec/checks.h"
#include "exec/thread_state.h"

namespace cavs {
namespace {

void validate(const AccessChecks& c, const Instruction& in) {
  c.check_inputs(in, 1);
  c.check_stored_rows(in);
  c.need(
      in.argument >= 0 && in.argument < kMostIndices && in.argument2 >= 0,
      "int feature " + std::to_string(in.argument) + ", parameter " + std::to_string(in.argument2));
  const int32_t width = in.inputs[0].width;
  for (const Instruction& other : c.program().instructions) {
    if (other.type != in.type || other.argument2 != in.argument2 || other.inputs.empty()) continue;
    const int32_t second = other.inputs[0].width;
    c.need(second == width, c.differ("two row widths of one table", width, second));
  }
}

void validate_sizes(const SizeChecks& c, const Instruction& in) {
  const std::string label = label_of(in);
  const int64_t size = c.size_of(in.argument2, label);
  c.need(size % in.inputs[0].width == 0, label,
         "rows of " + std::to_string(in.inputs[0].width) + " of parameter " +
             std::to_string(in.argument2) + ", which has " + std::to_string(size) + " elements");
}

int64_t table_rows(const Instruction& in, const std::vector<int64_t>& sizes) {
  return sizes[in.argument2] / in.inputs[0].width;
}

Traffic traffic(const TrafficContext& context, const Instruction& in) {
  for (const Table& table : context.tables) {
    if (table.param == in.argument2) {
      return {0, static_cast<int64_t>(table.slots.size()) * table.width};
    }
  }
  return {};
}

template <class T>
void bind(const Program&, const Instruction& in, const Addresses<T>& at, Bound<T>& b) {
  b.index = at.index_features->rows(in.argument, in.space).data();
}

// A share of the slots; `grad` is the dense gradient, if any.
template <class T>
void add_all(const Table& table, const Lookup& lookup, const Source<T>& values, Share share,
             T* grad, const Kernels<T>& kernels) {
  const auto slots = static_cast<int64_t>(table.slots.size());
  const int64_t begin = slots * share.number / share.of,
                end = slots * (share.number + 1) / share.of;
  Source<T> rows = values;
  if (values.map == RowMap::kOne) rows.stride = rows.base = 0;
  rows.index = lookup.rows.data();
  T* const out = table.dense ? grad : table.values.as<T>();
  if (lookup.first && !table.dense) {
    rows.map = RowMap::kSegmentSum;
    rows.offsets = lookup.offsets.data();
    kernels.copy_rows(rows, begin, end, out, table.width, 0);
    return;
  }
  rows.map = RowMap::kIndex;
  for (int64_t s = begin; s < end; ++s) {
    const int32_t r0 = lookup.offsets[s], r1 = lookup.offsets[s + 1];
    if (r0 == r1) continue;
    const int64_t at = table.dense ? table.slots[s] : s;
    kernels.sum_rows(rows, r0, r1, out + at * table.width, true);
  }
}

// The same for the rows of a task.
template <class T>
void add_task(const Table& table, const Lookup& lookup, const Source<T>& values, RowRange rows,
              Share share, T* grad, const Kernels<T>& kernels) {
  T* const out = table.dense ? grad : table.values.as<T>();
  for (int32_t r = rows.begin; r < rows.end; ++r) {
    const int32_t slot = lookup.slot_of[r];
    if (slot < 0 || slot % share.of != share.number) continue;
    const int64_t at = table.dense ? table.slots[slot] : slot;
    kernels.sum_rows(values, r, r + 1, out + at * table.width, true);
  }
}

template <class T>
void run(ThreadState<T>& thread, const Item& item) {
  const auto& [id, share, extent] = std::get<SumShare>(item);
  const Source<T>& values = *thread.sources(thread.bound.instructions[id]);
  for (const Table& table : thread.run.tables) {
    T* const grad = thread.run.grads[table.param];
    for (const Lookup& lookup : table.lookups) {
      if (lookup.instruction != id) continue;
      if (extent.over == SumExtent::Over::kAll) {
        add_all(table, lookup, values, share, grad, thread.kernels());
      } else {
        add_task(table, lookup, values, thread.rows_of(extent, id), share, grad, thread.kernels());
      }
    }
  }
}

}  // namespace

constinit const InstructionTraits instructions::lookup_grad = {
    .cut = Cut::kShares,
    .sparse_gradient = true,
    .validate = validate,
    .validate_sizes = validate_sizes,
    .index_limit = table_rows,
    .traffic = traffic,
    .float32 = {.bind = bind, .sum = run},
    .float64 = {.bind = bind, .sum = run}};

}  // namespace cavs
