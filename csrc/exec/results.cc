// Results that a caller may read from an executor after a run.
#include <algorithm>
#include <stdexcept>

#include "exec/host_io.h"
#include "exec/names.h"
#include "exec/traffic.h"

namespace cavs {
namespace {
constexpr size_t kPooledOutput = 1 << 20;
}

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
  for (const Factors& f : context_.factors) {
    if (f.param == param && !f.first_row.empty()) return multiply(f, out);  // after the first run
  }
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
std::optional<std::pair<std::vector<int32_t>, Output<T>>> Executor<T>::gradient_rows(
    int32_t param) {
  const std::lock_guard lock(mutex_);
  check_param(param);
  check_ran();
  for (const Table& table : context_.tables) {
    if (table.param != param || table.dense) continue;
    const auto count = static_cast<int64_t>(table.slots.size());
    std::vector<int32_t> rows;
    rows.reserve(count);
    const std::shared_ptr<Memory> values = output_memory(count * table.width * sizeof(T));
    T* to = values->template as<T>();
    for (int32_t s : slots_by_row(table)) {
      rows.push_back(table.slots[s]);
      to = std::copy_n(table.values.as<T>() + s * table.width, table.width, to);
    }
    return std::pair{std::move(rows), Output<T>{values, count, table.width}};
  }
  return std::nullopt;
}

template <class T>
Output<T> Executor<T>::output(int32_t buffer) {
  const std::lock_guard lock(mutex_);
  check_ran();
  const auto [rows, width] = output_shape(*program_, spaces_, buffer);
  for (size_t i = 0; i < output_memory_.size(); ++i) {
    if (context_.copied_outputs[i].buffer != buffer) continue;
    const std::shared_ptr<Memory>& memory = output_memory_[i];
    if (memory.use_count() == 1) return {memory, rows, width};
    const std::shared_ptr<Memory> copy =
        output_memory(memory->bytes());  // the caller has the first
    std::copy_n(memory->as<T>(), rows * width, copy->template as<T>());
    return {copy, rows, width};
  }
  const std::shared_ptr<Memory> memory = output_memory(rows * width * sizeof(T));
  const T* values = arena_->as<T>() + analysis_.lifetimes[buffer].offset / sizeof(T);
  to_caller(*program_, spaces_, *schedule_, buffer, values, memory->template as<T>());
  return {memory, rows, width};
}

template <class T>
std::shared_ptr<Memory> Executor<T>::output_memory(size_t bytes) {
  // The system provides few pages faster than a pool finds a block of the size.
  auto memory = bytes < kPooledOutput ? std::make_shared<Memory>() : output_pool_.take();
  memory->reserve(bytes);
  return memory;
}

// Give each output that is copied during a part of a run new memory: the caller may have that of
// the last run.
template <class T>
void Executor<T>::bind_outputs(Part part) {
  output_memory_.resize(context_.copied_outputs.size());
  for (size_t i = 0; i < output_memory_.size(); ++i) {
    CopiedOutput<T>& out = context_.copied_outputs[i];
    const bool forward = out.stage < program_->forward_stages;
    if (part == (forward ? Part::kBackward : Part::kForward)) continue;
    output_memory_[i] = nullptr;  // back to the pool
    const int64_t rows = output_shape(*program_, spaces_, out.buffer).first;
    output_memory_[i] = output_memory(rows * out.width * sizeof(T));
    out.data = output_memory_[i]->template as<T>();
    out.order = order_of(*program_, *schedule_, out.buffer);
  }
}

template <class T>
Report Executor<T>::report() const {
  const std::lock_guard lock(mutex_);
  const Program& p = *program_;
  Report report;
  report.arena_bytes = arena_needed_ + sizeof(T) * plan_.deferred;
  report.peak_bytes = peak_;
  report.scratch_bytes = context_.scratch_bytes;
  for (const Memory& memory : context_.packed) report.packed_bytes += memory.bytes();
  report.runs = runs_;
  report.products = kernels_.products;
  report.pack_seconds = pack_seconds_;
  report.update_seconds = update_seconds_;
  report.phases = static_cast<int32_t>(plan_.phases.size());
  for (const Phase& s : plan_.phases) report.shared_phases += !s.serial;
  report.threads = planned_threads_;
  report.estimated_seconds = cost_ * 1e-9;
  for (size_t i = 0; i < p.stages.size(); ++i) {
    Report::Line line;
    line.label = p.stages[i].label;
    line.kind = name_of(p.stages[i].type);
    line.seconds = stage_seconds_[i];
    report.stages.push_back(line);
  }
  if (schedule_ != nullptr) {
    for (const BatchTask& task : schedule_->tasks) report.widths.push_back(task.rows.size());
  }
  for (size_t i = 0; i < p.instructions.size(); ++i) {
    Report::Line line = report_line(p, static_cast<int32_t>(i), sizeof(T), spaces_, schedule_.get(),
                                    index_features_, context_.tables);
    if (schedule_ != nullptr && traits_of(p.instructions[i]).cut == Cut::kCells) {
      int64_t written = 0;  // counted once for all terms of a product, at the first
      for (const Product::Cell& cell : analysis_.products[i].cells) written += cell.size();
      line.write_bytes = written * static_cast<int64_t>(sizeof(T));
    }
    for (const auto& worker : workers_) {
      if (i >= worker->profile.size()) continue;
      line.seconds += worker->profile[i].seconds;
      line.calls += worker->profile[i].calls;
    }
    report.instructions.push_back(line);
  }
  return report;
}

#define CAVS_INSTANTIATE(T)                                                                      \
  template void Executor<T>::check_param(int32_t) const;                                         \
  template void Executor<T>::check_ran() const;                                                  \
  template void Executor<T>::gradient(int32_t, T*) const;                                        \
  template std::optional<std::pair<std::vector<int32_t>, Output<T>>> Executor<T>::gradient_rows( \
      int32_t);                                                                                  \
  template Output<T> Executor<T>::output(int32_t);                                               \
  template std::shared_ptr<Memory> Executor<T>::output_memory(size_t);                           \
  template void Executor<T>::bind_outputs(Part);                                                 \
  template Report Executor<T>::report() const;
CAVS_INSTANTIATE(float)
CAVS_INSTANTIATE(double)
#undef CAVS_INSTANTIATE

}  // namespace cavs
