// lookup_grad: the sparse gradient of a table, rows of cotangents added into slots.
#include <algorithm>

#include "cuda/executor/launchers.h"
#include "exec/spaces.h"

namespace cavs::cuda {
namespace {

// Return the rows of `lookup` within `rows`, sorted by slot.
template <class T>
SlotRows slots_of_task(const Table& table, const Lookup& lookup, const Source<T>& values,
                       int32_t task, RowRange rows) {
  SlotRows out;
  out.task = task;
  for (int32_t r = rows.begin; r < rows.end; ++r) {
    if (lookup.slot_of[r] >= 0) out.rows.push_back(r);
  }
  std::stable_sort(out.rows.begin(), out.rows.end(),
                   [&](int32_t a, int32_t b) { return lookup.slot_of[a] < lookup.slot_of[b]; });
  for (size_t i = 0; i < out.rows.size(); ++i) {
    const int32_t slot = lookup.slot_of[out.rows[i]];
    const int32_t at = table.dense ? table.slots[slot] : slot;
    if (out.slots.empty() || out.slots.back() != at) {
      out.slots.push_back(at);
      out.offsets.push_back(static_cast<int32_t>(i));
    }
  }
  out.offsets.push_back(static_cast<int32_t>(out.rows.size()));
  if (values.map == RowMap::kIndex) {
    for (int32_t& r : out.rows) r = values.index[r];
  }
  return out;
}

}  // namespace

template <class T>
void Executor<T>::stage_lookups() {
  size_t bytes = 0;
  table_slots_.clear();
  for (Table& table : tables_) {
    bind_table(table, bound_, spaces_);
    table_slots_.push_back(staging_.add(std::span<const int32_t>(table.slots)));
    if (!table.dense) bytes += aligned(table.slots.size() * table.width * sizeof(T));
    for (const Lookup& lookup : table.lookups) {
      std::vector<SlotRows>& of = slot_rows_[lookup.instruction];
      of.clear();
      if (lookup.looped) {
        stage_task_lookups(table, lookup);
        continue;
      }
      SlotRows all;
      all.task = -1;
      all.at_offsets = staging_.add(std::span<const int32_t>(lookup.offsets));
      all.at_rows = staging_.add(std::span<const int32_t>(lookup.rows));
      of.push_back(std::move(all));
    }
  }
  table_values_.reserve(bytes);
  table_at_.clear();
  size_t at = 0;
  for (const Table& table : tables_) {
    table_at_.push_back(reinterpret_cast<T*>(table_values_.at(at)));
    if (!table.dense) at += aligned(table.slots.size() * table.width * sizeof(T));
  }
}

template <class T>
void Executor<T>::stage_task_lookups(const Table& table, const Lookup& lookup) {
  const Bound<T>& b = bound_.instructions[lookup.instruction];
  std::vector<SlotRows>& of = slot_rows_[lookup.instruction];
  for (size_t t = 0; t < schedule_->tasks.size(); ++t) {
    const RowRange within = spaces_.rows(b.space);
    RowRange rows = rows_of(lookup.instruction, kVertexSpace, schedule_->tasks[t].rows);
    rows = {std::max(rows.begin, within.begin), std::min(rows.end, within.end)};
    if (rows.begin >= rows.end) continue;
    of.push_back(
        slots_of_task(table, lookup, bound_.sources[b.first], static_cast<int32_t>(t), rows));
  }
  for (SlotRows& s : of) {
    s.at_offsets = staging_.add(std::span<const int32_t>(s.offsets));
    s.at_rows = staging_.add(std::span<const int32_t>(s.rows));
    s.at_slots = staging_.add(std::span<const int32_t>(s.slots));
  }
}

template <class T>
void Launchers<T>::lookup_grad(Executor<T>& e, int32_t id, const LaunchRows& at) {
  for (size_t t = 0; t < e.tables_.size(); ++t) {
    const Table& table = e.tables_[t];
    for (const Lookup& lookup : table.lookups) {
      if (lookup.instruction != id) continue;
      for (const SlotRows& of : e.slot_rows_[id]) {
        if (of.task != at.task) continue;
        T* out = table.dense ? e.grads_[table.param] : e.table_at_[t];
        const bool looped = lookup.looped;
        const int32_t* slots = looped        ? e.staging_.template at<int32_t>(of.at_slots)
                               : table.dense ? e.staging_.template at<int32_t>(e.table_slots_[t])
                                             : nullptr;
        const size_t count = looped ? of.slots.size() : table.slots.size();
        e.library_->lookup_grad(e.source(e.bound_.instructions[id].first, 0),
                                e.staging_.template at<int32_t>(of.at_offsets),
                                e.staging_.template at<int32_t>(of.at_rows), slots,
                                static_cast<int>(count), out, lookup.first && !table.dense);
      }
    }
  }
}

CAVS_INSTANTIATE_LAUNCHER(lookup_grad)

template void Executor<float>::stage_lookups();
template void Executor<double>::stage_lookups();

}  // namespace cavs::cuda
