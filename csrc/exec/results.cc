// What a caller may ask an executor after a run.
#include <algorithm>
#include <stdexcept>

#include "exec/caller.h"
#include "exec/spaces.h"

namespace cavs {

template <class T>
void Executor<T>::check_param(int32_t param) const {
  if (param < 0 || param >= static_cast<int32_t>(context_.sizes.size())) {
    throw std::out_of_range("parameter " + std::to_string(param) + " of " +
                            std::to_string(context_.sizes.size()));
  }
}

template <class T>
void Executor<T>::check_ran() const {
  if (!ran_) throw std::runtime_error("nothing to read: the last run failed, or there was none");
}

template <class T>
void Executor<T>::gradient(int32_t param, T* out) const {
  const std::lock_guard lock(mutex_);
  check_param(param);
  check_ran();
  const int64_t size = context_.sizes[param];
  if (analysis_.dense_gradient[param]) {
    std::copy_n(context_.grads[param], size, out);
    return;
  }
  std::fill_n(out, size, T(0));
  for (const Table& table : context_.tables) {
    if (table.param != param) continue;
    for (size_t s = 0; s < table.slots.size(); ++s) {
      std::copy_n(table.values.as<T>() + s * table.width, table.width,
                  out + table.slots[s] * table.width);
    }
  }
}

template <class T>
std::optional<std::pair<std::vector<int32_t>, std::vector<T>>> Executor<T>::gradient_rows(
    int32_t param) const {
  const std::lock_guard lock(mutex_);
  check_param(param);
  check_ran();
  for (const Table& table : context_.tables) {
    if (table.param != param || table.dense) continue;
    std::vector<int32_t> rows;
    std::vector<T> values;
    for (int32_t s : slots_by_row(table)) {
      rows.push_back(table.slots[s]);
      const T* row = table.values.as<T>() + s * table.width;
      values.insert(values.end(), row, row + table.width);
    }
    return std::pair{std::move(rows), std::move(values)};
  }
  return std::nullopt;
}

template <class T>
std::pair<int64_t, int64_t> Executor<T>::output_shape(int32_t buffer) const {
  const std::lock_guard lock(mutex_);
  check_ran();
  return cavs::output_shape(*program_, spaces_, buffer);
}

template <class T>
void Executor<T>::output(int32_t buffer, T* out) const {
  const std::lock_guard lock(mutex_);
  check_ran();
  cavs::output_shape(*program_, spaces_, buffer);  // refuses what is no output
  const T* values = arena_.as<T>() + analysis_.lifetimes[buffer].offset / sizeof(T);
  to_caller(*program_, spaces_, *schedule_, buffer, values, out);
}

namespace {

// Bytes one operand reads through its index or segments, over all rows it is read for.
int64_t gathered(const Operand& o, Space space, const Spaces& spaces, const Schedule& s) {
  const RowRange rows = spaces.ranges[space];
  if (o.map == RowMap::kIndex) return int64_t{rows.size()} * o.width;
  if (o.map != RowMap::kSegmentSum || rows.size() == 0) return 0;
  const int32_t* offsets = o.array == Array::kOut          ? s.out_offsets.data()
                           : o.array == Array::kGraphRows  ? s.graph_offsets.data()
                           : o.array == Array::kNthParents ? s.nth_parents(o.argument)
                                                           : s.edge_offsets.data();
  return int64_t{offsets[rows.end] - offsets[rows.begin]} * o.width;
}

}  // namespace

template <class T>
Report Executor<T>::report() const {
  const std::lock_guard lock(mutex_);
  const Program& p = *program_;
  Report report;
  report.arena_bytes = arena_needed_;
  report.peak_bytes = peak_;
  report.scratch_bytes = context_.scratch_bytes;
  for (const Memory& memory : context_.packed) report.packed_bytes += memory.bytes();
  report.runs = runs_;
  report.pack_seconds = pack_seconds_;
  report.segments = static_cast<int32_t>(plan_.segments.size());
  report.threads = planned_threads_;
  report.estimated_seconds = plan_.cost * 1e-9;
  for (size_t i = 0; i < p.stages.size(); ++i) {
    static const char* const kKinds[] = {"rows", "loop", "global"};
    Report::Line line;
    line.label = p.stages[i].label;
    line.kind = kKinds[static_cast<int>(p.stages[i].kind)];
    line.seconds = stage_seconds_[i];
    report.stages.push_back(line);
  }
  if (schedule_ != nullptr) {
    for (const BatchTask& task : schedule_->tasks) report.widths.push_back(task.rows.size());
  }
  for (size_t i = 0; i < p.instructions.size(); ++i) {
    const Instruction& in = p.instructions[i];
    Report::Line line;
    line.label = in.label;
    line.kind = instruction_name(in.kind);
    for (const auto& worker : workers_) {
      if (i >= worker->profile.size()) continue;
      line.seconds += worker->profile[i].seconds;
      line.calls += worker->profile[i].calls;
    }
    if (schedule_ != nullptr) {
      const int64_t rows = spaces_.ranges[in.space].size();
      int64_t written = 0;
      for (const Operand& o : in.inputs) {
        line.gather_bytes += gathered(o, in.space, spaces_, *schedule_);
      }
      for (const MapLoadSpec& l : in.loads) {
        line.gather_bytes += gathered(l.operand, in.space, spaces_, *schedule_);
      }
      for (const MapStoreSpec& s : in.stores) {
        written += rows * in.outer * (s.mode == StoreMode::kWrite ? in.inner : 1);
      }
      const Bound<T>& b = bound_.instructions[i];
      if (in.kind == InstructionKind::kMatmul || in.kind == InstructionKind::kMatmulTN) {
        line.flops = 2.0 * static_cast<double>(rows) * static_cast<double>(b.k * b.n);
      }
      if (in.kind == InstructionKind::kMatmulTN) {
        written = b.k * b.n;
      } else if (in.kind == InstructionKind::kSumRows) {
        written = in.out.width;
      } else if (in.kind == InstructionKind::kLookupGrad) {
        for (const Table& table : context_.tables) {
          if (table.param == in.argument2) {
            written = static_cast<int64_t>(table.slots.size()) * table.width;
          }
        }
      } else if (in.kind != InstructionKind::kMap) {
        written = rows * in.out.width;
      }
      line.gather_bytes *= sizeof(T);
      line.write_bytes = written * static_cast<int64_t>(sizeof(T));
    }
    report.instructions.push_back(line);
  }
  return report;
}

#define CAVS_INSTANTIATE(T)                                                      \
  template void Executor<T>::check_param(int32_t) const;                         \
  template void Executor<T>::check_ran() const;                                  \
  template void Executor<T>::gradient(int32_t, T*) const;                        \
  template std::optional<std::pair<std::vector<int32_t>, std::vector<T>>>        \
  Executor<T>::gradient_rows(int32_t) const;                                     \
  template std::pair<int64_t, int64_t> Executor<T>::output_shape(int32_t) const; \
  template void Executor<T>::output(int32_t, T*) const;                          \
  template Report Executor<T>::report() const;
CAVS_INSTANTIATE(float)
CAVS_INSTANTIATE(double)
#undef CAVS_INSTANTIATE

}  // namespace cavs
