// Results, gradients and reports that a caller may ask for after a run.
#include <algorithm>
#include <stdexcept>

#include "cuda/driver/context.h"
#include "cuda/driver/event.h"
#include "cuda/executor/executor.h"
#include "exec/host_io.h"
#include "exec/names.h"
#include "exec/traffic.h"

namespace cavs::cuda {
namespace {

constexpr size_t kMostPageLocked = 1
                                   << 20;  // bytes of readback memory; larger outputs are pageable

}  // namespace

template <class T>
void Executor<T>::check_param(int32_t param) const {
  const auto parameters = static_cast<int32_t>(parameters_->sizes().size());
  if (param >= 0 && param < parameters) return;
  throw std::out_of_range("parameter " + std::to_string(param) + " of " +
                          std::to_string(parameters));
}

template <class T>
void Executor<T>::check_ran() const {
  if (!ran_) throw std::runtime_error("nothing to read: the last run failed, or there was none");
}

template <class T>
Address Executor<T>::address_of(int32_t buffer) const {
  return arena_.at(analysis_.lifetimes[buffer].offset);
}

template <class T>
std::optional<std::pair<std::vector<int32_t>, std::vector<T>>> Executor<T>::gradient_rows(
    int32_t param) {
  const DeviceLock lock(*device_);
  check_param(param);
  check_ran();
  for (size_t t = 0; t < tables_.size(); ++t) {
    const Table& table = tables_[t];
    if (table.param != param || table.dense) continue;
    const size_t n = table.slots.size(), width = table.width;
    std::vector<T> values(n * width), sorted;
    device_->download(values.data(), reinterpret_cast<Address>(table_at_[t]),
                      n * width * sizeof(T));
    device_->synchronize();
    std::vector<int32_t> rows;
    for (int32_t s : slots_by_row(table)) {
      rows.push_back(table.slots[s]);
      sorted.insert(sorted.end(), values.begin() + s * width, values.begin() + (s + 1) * width);
    }
    return std::pair{std::move(rows), std::move(sorted)};
  }
  return std::nullopt;
}

template <class T>
void Executor<T>::gradient(int32_t param, T* out) {
  const auto rows = gradient_rows(param);
  const DeviceLock lock(*device_);
  const int64_t size = parameters_->sizes()[param];
  if (analysis_.dense_gradient[param]) {
    device_->download(out, reinterpret_cast<Address>(grads_[param]), size * sizeof(T));
    device_->synchronize();
    return;
  }
  std::fill_n(out, size, T(0));
  if (!rows || rows->first.empty()) return;
  const auto width = static_cast<int64_t>(rows->second.size() / rows->first.size());
  for (size_t i = 0; i < rows->first.size(); ++i) {
    std::copy_n(rows->second.begin() + static_cast<int64_t>(i) * width, width,
                out + rows->first[i] * width);
  }
}

template <class T>
bool Executor<T>::wait_gradient(int32_t param, int64_t begin, int64_t end) const {
  check_param(param);
  return mirror_.wait(param, begin, end);
}

template <class T>
GradientView<T> Executor<T>::gradient_view(int32_t param) {
  check_param(param);
  if (analysis_.dense_gradient[param]) {
    gradient_block();
    return {mirror_.dense(param), nullptr, parameters_->sizes()[param], 1};
  }
  for (size_t t = 0; t < tables_.size(); ++t) {
    const Table& table = tables_[t];
    if (table.param != param) continue;
    return {mirror_.rows(t), table.slots.data(), static_cast<int64_t>(table.slots.size()),
            table.width, true};
  }
  return {};
}

template <class T>
std::pair<T*, int64_t> Executor<T>::gradient_block() {
  if (!mirror_.reserved()) {
    const DeviceLock lock(*device_);
    mirror_.reserve();
  }
  return {mirror_.block(), mirror_.layout().elements};
}

template <class T>
void Executor<T>::arm_gradients() {
  collectives_.begin();
  mirror_.arm();
}

template <class T>
T* Executor<T>::keep_gradient(int32_t param) {
  check_param(param);
  if (!analysis_.dense_gradient[param]) {
    throw std::invalid_argument("parameter " + std::to_string(param) + " has no dense gradient");
  }
  mirror_.keep_on_device(param);
  return grads_[param];
}

template <class T>
T* Executor<T>::kept_gradient(int32_t param) const {
  check_param(param);
  if (!mirror_.stays_on_device(param)) {
    throw std::invalid_argument("gradient of parameter " + std::to_string(param) +
                                " is not kept on the device");
  }
  return grads_[param];
}

template <class T>
bool Executor<T>::follow_gradient(int32_t param) {
  check_param(param);
  if (!mirror_.wait_launched(param)) return false;
  collectives_.follow(mirror_.computed(param));
  return true;
}

template <class T>
bool Executor<T>::set_factored(int32_t param) {
  const DeviceLock lock(*device_);
  check_param(param);
  auto f = std::make_unique<DeviceFactors>(device_);
  if (!make_factors(*program_, analysis_, param, parameters_->sizes()[param], f->of)) return false;
  for (int32_t id : f->of.instructions) {
    factors_of_instruction_[id] = static_cast<int32_t>(factors_.size());
  }
  factors_.push_back(std::move(f));
  return true;
}

template <class T>
const DeviceFactors& Executor<T>::factors(int32_t param) const {
  for (const auto& f : factors_) {
    if (f->of.param == param) return *f;
  }
  throw std::out_of_range("parameter " + std::to_string(param) + " is not factored");
}

template <class T>
Output<T> Executor<T>::output(int32_t buffer) {
  const DeviceLock lock(*device_);
  check_ran();
  const auto [rows, width] = output_shape(*program_, spaces_, buffer);
  const size_t bytes = spaces_.rows(program_->buffers[buffer].space).size() * width * sizeof(T);
  std::vector<T> many;
  T* values = nullptr;
  if (bytes <= kMostPageLocked) {
    readback_.reserve(bytes);
    values = readback_.at<T>();
  } else {
    many.resize(bytes / sizeof(T));
    values = many.data();
  }
  device_->download(values, address_of(buffer), bytes);
  device_->synchronize_lane();
  const auto memory = std::make_shared<Memory>();
  memory->reserve(rows * width * sizeof(T));
  to_caller(*program_, spaces_, *schedule_, buffer, values, memory->as<T>());
  return {memory, rows, width};
}

template <class T>
void Executor<T>::set_profiling(bool on) {
  const DeviceLock lock(*device_);
  profiling_ = on;
  runs_ = 0;
  calls_.assign(calls_.size(), 0);
  std::fill(stage_seconds_.begin(), stage_seconds_.end(), 0);
}

// While profiling: record an event before the first stage and after each.
template <class T>
void Executor<T>::mark_stage(int32_t stage) {
  if (!profiling_) return;
  while (events_.size() <= static_cast<size_t>(stage)) {
    events_.push_back(std::make_unique<Event>(device_, true));
  }
  events_[stage]->record();
}

// While profiling: add the times of the last run, after a synchronize().
template <class T>
void Executor<T>::read_stage_times() {
  for (size_t s = 0; s < stage_seconds_.size(); ++s) {
    stage_seconds_[s] += events_[s + 1]->seconds_since(*events_[s]);
  }
  ++runs_;
}

template <class T>
Report Executor<T>::report() const {
  const DeviceLock lock(*device_);
  Report report;
  report.arena_bytes = arena_needed_;
  report.peak_bytes = peak_;
  report.scratch_bytes = scratch_bytes_;
  for (const auto& lstm : lstms_) report.scratch_bytes += lstm->bytes();
  report.packed_bytes = weights_.bytes();
  report.runs = runs_;
  report.phases = static_cast<int32_t>(launches_);
  for (size_t i = 0; i < program_->stages.size(); ++i) {
    const Stage& stage = program_->stages[i];
    report.stages.push_back({stage.label, name_of(stage.type), stage_seconds_[i], 0, 0, 0, 0, 0});
  }
  if (schedule_ != nullptr) {
    for (const BatchTask& task : schedule_->tasks) report.widths.push_back(task.rows.size());
  }
  for (size_t i = 0; i < program_->instructions.size(); ++i) {
    report.instructions.push_back(report_line(*program_, static_cast<int32_t>(i), sizeof(T),
                                              spaces_, schedule_.get(), index_features_, tables_));
    report.instructions.back().calls = calls_[i];
  }
  return report;
}

template <class T>
ReplayCache::Report Executor<T>::replays() const {
  const DeviceLock lock(*device_);
  return replays_.report();
}

template <class T>
std::vector<std::pair<std::string, size_t>> Executor<T>::memory() const {
  const DeviceLock lock(*device_);
  size_t factors = 0, lstms = 0;
  for (const auto& f : factors_) factors += f->left.bytes() + f->right.bytes();
  for (const auto& lstm : lstms_) lstms += lstm->bytes();
  return {{"parameters", parameters_->value_bytes()},
          {"states", parameters_->state_bytes()},
          {"workspaces", library_->workspace_bytes()},
          {"arena", arena_.bytes()},
          {"scratch", scratch_.bytes() + narrow_scratch_.bytes()},
          {"gradients", gradients_.bytes() + table_values_.bytes() + factors},
          {"weights", weights_.bytes()},
          {"staging", staging_.device_bytes()},
          {"lstms", lstms},
          {"others", ones_.bytes() + pieces_.bytes() + partial_.bytes() + arrived_.bytes()},
          {"outcomes", parameters_->outcomes().device_bytes()}};
}

template <class T>
size_t Executor<T>::page_locked_bytes() const {
  const DeviceLock lock(*device_);
  return staging_.host_bytes() + mirror_.host_bytes() + readback_.bytes();
}

template <class T>
void Executor<T>::set_tracing(bool on) {
  const DeviceLock lock(*device_);
  timeline_.set(on);
}

template <class T>
std::vector<Span> Executor<T>::trace() const {
  const DeviceLock lock(*device_);
  return timeline_.spans();
}

#define CAVS_INSTANTIATE(T)                                                         \
  template void Executor<T>::check_param(int32_t) const;                            \
  template void Executor<T>::check_ran() const;                                     \
  template Address Executor<T>::address_of(int32_t) const;                          \
  template bool Executor<T>::wait_gradient(int32_t, int64_t, int64_t) const;        \
  template GradientView<T> Executor<T>::gradient_view(int32_t);                     \
  template std::pair<T*, int64_t> Executor<T>::gradient_block();                    \
  template void Executor<T>::arm_gradients();                                       \
  template T* Executor<T>::keep_gradient(int32_t);                                  \
  template T* Executor<T>::kept_gradient(int32_t) const;                            \
  template bool Executor<T>::follow_gradient(int32_t);                              \
  template bool Executor<T>::set_factored(int32_t);                                 \
  template const DeviceFactors& Executor<T>::factors(int32_t) const;                \
  template void Executor<T>::gradient(int32_t, T*);                                 \
  template std::optional<std::pair<std::vector<int32_t>, std::vector<T>>>           \
  Executor<T>::gradient_rows(int32_t);                                              \
  template Output<T> Executor<T>::output(int32_t);                                  \
  template void Executor<T>::set_profiling(bool);                                   \
  template void Executor<T>::mark_stage(int32_t);                                   \
  template void Executor<T>::read_stage_times();                                    \
  template Report Executor<T>::report() const;                                      \
  template std::vector<std::pair<std::string, size_t>> Executor<T>::memory() const; \
  template size_t Executor<T>::page_locked_bytes() const;                           \
  template void Executor<T>::set_tracing(bool);                                     \
  template std::vector<Span> Executor<T>::trace() const;                            \
  template ReplayCache::Report Executor<T>::replays() const;
CAVS_INSTANTIATE(float)
CAVS_INSTANTIATE(double)
#undef CAVS_INSTANTIATE

}  // namespace cavs::cuda
