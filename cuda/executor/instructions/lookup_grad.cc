// Launches lookup_grad: a kernel for each lookup of the table.
#include "cuda/executor/launchers.h"

namespace cavs::cuda {

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

}  // namespace cavs::cuda
