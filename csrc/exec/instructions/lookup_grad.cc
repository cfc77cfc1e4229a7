// lookup_grad: the sparse gradient of parameter `argument2`. Row r of inputs[0] is added to the row
// that int feature `argument` names; a negative index drops it.
// Above the instruction, the rows of the gradients that it adds to.
#include <algorithm>
#include <numeric>

#include "exec/bind.h"
#include "exec/checks.h"
#include "exec/sparse_gradients.h"
#include "exec/thread_state.h"

namespace cavs {

std::vector<Table> make_tables(const Program& p, const std::vector<bool>& dense,
                               const std::vector<int64_t>& sizes) {
  std::vector<Table> tables;
  const auto add = [&](int32_t id, bool looped) {
    const Instruction& in = p.instructions[id];
    if (!traits_of(in).sparse_gradient) return;
    Table* table = nullptr;
    for (Table& t : tables) {
      if (t.param == in.argument2) table = &t;
    }
    if (table == nullptr) {
      table = &tables.emplace_back();
      table->param = in.argument2;
      table->width = in.inputs[0].width;
      table->dense = dense[in.argument2];
      table->slot_of.assign(sizes[in.argument2] / table->width, -1);
    }
    table->lookups.push_back({id, table->lookups.empty() && !looped, looped, {}, {}, {}});
  };
  // Instructions in execution order.
  for (const Stage& stage : p.stages) {
    if (stage.type == StageType::kGlobal) add(stage.body[0], false);
    for (const std::vector<int32_t>& body : stage.bodies) {
      for (int32_t id : body) add(id, true);
    }
  }
  return tables;
}

template <class T>
void bind_table(Table& table, const BoundProgram<T>& bound, const Spaces& spaces) {
  table.slots.clear();
  // Reset on every path, so that the next batch finds no slots of this one.
  struct Clear {
    Table& table;
    ~Clear() {
      for (int32_t i : table.slots) table.slot_of[i] = -1;
    }
  } clear{table};
  const auto each_row = [&](const Lookup& lookup, auto&& f) {
    const Bound<T>& b = bound.instructions[lookup.instruction];
    const RowRange range = spaces.rows(b.space);
    for (int32_t r = range.begin; r < range.end; ++r) {
      if (b.index[r] >= 0) f(r, b.index[r]);
    }
  };
  for (const Lookup& lookup : table.lookups) {
    each_row(lookup, [&](int32_t, int32_t i) {
      if (table.slot_of[i] >= 0) return;
      table.slots.push_back(i);
      table.slot_of[i] = static_cast<int32_t>(table.slots.size()) - 1;
    });
  }
  const size_t slots = table.slots.size();
  bool writes = false;
  for (Lookup& lookup : table.lookups) {
    writes |= lookup.first;
    if (lookup.looped) {
      lookup.slot_of.assign(spaces.rows(bound.instructions[lookup.instruction].space).end, -1);
      each_row(lookup, [&](int32_t r, int32_t i) { lookup.slot_of[r] = table.slot_of[i]; });
      continue;
    }
    std::vector<int32_t>& offsets = lookup.offsets;
    offsets.assign(slots + 2, 0);
    // Counts are stored two positions up, so that filling moves every start to the end of its
    // range.
    each_row(lookup, [&](int32_t, int32_t i) { ++offsets[table.slot_of[i] + 2]; });
    std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
    lookup.rows.resize(offsets.back());
    each_row(lookup,
             [&](int32_t r, int32_t i) { lookup.rows[offsets[table.slot_of[i] + 1]++] = r; });
    const Source<T>& values = bound.sources[bound.instructions[lookup.instruction].first];
    if (values.map == RowMap::kIndex) {
      for (int32_t& r : lookup.rows) r = values.index[r];
    }
  }
  if (table.dense) return;
  table.values.reserve(slots * table.width * sizeof(T));
  if (!writes) std::fill_n(table.values.as<T>(), slots * table.width, T(0));
}

template void bind_table(Table&, const BoundProgram<float>&, const Spaces&);
template void bind_table(Table&, const BoundProgram<double>&, const Spaces&);

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
