#include "exec/sparse_gradients.h"

#include <algorithm>
#include <numeric>

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

}  // namespace cavs
