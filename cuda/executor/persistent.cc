// Persistent kernels: one launch runs consecutive narrow tasks of a loop.
#include <algorithm>

#include "cuda/driver/module.h"
#include "cuda/executor/executor.h"
#include "exec/spaces.h"

namespace cavs::cuda {
namespace {

constexpr size_t kTask = 5;  // numbers of a task: kind, rows, edge rows

}  // namespace

template <class T>
void Executor<T>::load_persistent(const CompiledProgram<T>& compiled) {
  const Program& p = *program_;
  persistent_.resize(p.stages.size());
  narrow_offsets_.assign(p.buffers.size(), 0);
  if (compiled.persistent.empty()) return;
  persistent_module_ = std::make_unique<Module>(device_, compiled.persistent_image);
  arrived_.reserve(compiled.persistent.size() * kAlignment);
  device_->zero(arrived_.at(), arrived_.bytes());
  for (size_t i = 0; i < compiled.persistent.size(); ++i) {
    const PersistentName& name = compiled.persistent[i];
    const Handle function = persistent_module_->function(name.name);
    const PersistentLoop of{function, static_cast<unsigned>(name.blocks),
                            static_cast<unsigned>(name.shared), name.instructions,
                            arrived_.at(i * kAlignment)};
    if (device_->fits_at_once(function, of.blocks, kBlock, of.shared)) {
      persistent_.at(name.stage) = of;
    }
  }
  device_->synchronize();
}

// True if a persistent kernel may run the task; it skips tasks without a body.
template <class T>
bool Executor<T>::narrow(int32_t stage, const BatchTask& task) const {
  const int32_t id = analysis_.bodies_of_stage[stage][spaces_.kinds[task.kind]];
  if (id < 0) return true;
  int32_t most = task.rows.size();
  for (const int32_t relation : analysis_.bodies[id].relations) {
    if (relation != kEdges) return false;  // the kernel knows the rows of edges alone
    most = std::max(most, task.edges.size());
  }
  return most <= device_->options().narrow_rows;
}

// Lay out scratch for the largest narrow task of each body. No buffers overlap, so that blocks need
// not wait for readers of an earlier value.
template <class T>
void Executor<T>::lay_out_narrow_scratch() {
  narrow_guards_.clear();
  for (size_t s = 0; s < persistent_.size(); ++s) {
    if (persistent_[s].function == nullptr) continue;
    const auto stage = static_cast<int32_t>(s);
    for (size_t kind = 0; kind < spaces_.kinds.size(); ++kind) {
      const int32_t id = analysis_.bodies_of_stage[s][spaces_.kinds[kind]];
      if (id < 0) continue;
      RowRange most, edges;  // [0, number)
      for (const BatchTask& task : schedule_->tasks) {
        if (static_cast<size_t>(task.kind) != kind || !narrow(stage, task)) continue;
        most.end = std::max(most.end, task.rows.size());
        edges.end = std::max(edges.end, task.edges.size());
      }
      for (const ScratchUse& use : analysis_.bodies[id].scratch) {
        const Buffer& b = program_->buffers[use.buffer];
        const size_t rows = (is_edge(b.space) ? edges : most).size();
        const size_t bytes = value_bytes(use.buffer) * b.width * rows;
        narrow_offsets_[use.buffer] = narrow_guards_.add(use.buffer, bytes);
      }
    }
  }
  narrow_scratch_.reserve(narrow_guards_.bytes());
}

template <class T>
void Executor<T>::stage_tasks() {
  tasks_at_ = -1;
  if (persistent_module_ == nullptr) return;
  task_numbers_.clear();
  for (const BatchTask& t : schedule_->tasks) {
    const int32_t numbers[kTask] = {spaces_.kinds[t.kind], t.rows.begin, t.rows.end, t.edges.begin,
                                    t.edges.end};
    task_numbers_.insert(task_numbers_.end(), std::begin(numbers), std::end(numbers));
  }
  tasks_at_ = staging_.add(std::span<const int32_t>(task_numbers_));
}

// Number of consecutive tasks, from the `from`-th of a loop, that one kernel may run; 0 if that
// would save no launch.
template <class T>
int32_t Executor<T>::narrow_tasks(int32_t stage, int32_t from) const {
  if (persistent_[stage].function == nullptr) return 0;
  const auto n = static_cast<int32_t>(schedule_->tasks.size());
  int32_t i = from, bodies = 0;
  for (; i < n; ++i) {
    const BatchTask& task = schedule_->tasks[task_number(stage, i)];
    if (!narrow(stage, task)) break;
    bodies += analysis_.bodies_of_stage[stage][spaces_.kinds[task.kind]] >= 0;
  }
  return bodies > 1 ? i - from : 0;
}

// The parameters are those that cavs.codegen.persistent declares.
template <class T>
void Executor<T>::run_persistent(int32_t stage, int32_t from, int32_t count) {
  const PersistentLoop& loop = persistent_[stage];
  ++launches_;
  PersistentArguments& arguments = persistent_arguments_;
  arguments.clear();
  arguments.add(staging_.at<int32_t>(tasks_at_));
  arguments.add(task_number(stage, from));
  arguments.add(count);
  arguments.add(program_->stages[stage].reversed ? -1 : 1);
  arguments.add(loop.arrived);
  narrow_ = true;
  const std::unique_ptr<bool, void (*)(bool*)> restored(&narrow_, [](bool* at) { *at = false; });
  for (int32_t id : loop.instructions) {
    if (profiling_) ++calls_[id];
    const Bound<T>& b = bound_.instructions[id];
    const InstructionTraits& traits = traits_of(b.type);
    if (traits.fused) {
      words_.clear();
      add_map_arguments(id, 0, words_);
      for (const uint64_t word : words_) arguments.add(word);
      continue;
    }
    if (traits.packed_weight) {
      Sources<T> sources;
      for (int32_t i = 0; i < b.count; ++i) sources.of[i] = source(b.first + i, 0);
      sources.count = b.count;
      arguments.add(sources);
      arguments.add(reinterpret_cast<uint64_t>(b.packed));
    } else {
      arguments.add(source(b.first, 0));
    }
    const Target out = target(id, 0);
    arguments.add(reinterpret_cast<uint64_t>(out.data));
    arguments.add(out.stride);
    arguments.add(out.base);
  }
  Grid grid{loop.blocks};
  grid.shared = loop.shared;
  grid.cooperative = true;
  device_->launch_kernel(loop.function, grid, arguments.list(), kBlock);
}

#define CAVS_INSTANTIATE(T)                                              \
  template void Executor<T>::load_persistent(const CompiledProgram<T>&); \
  template void Executor<T>::lay_out_narrow_scratch();                   \
  template void Executor<T>::stage_tasks();                              \
  template int32_t Executor<T>::narrow_tasks(int32_t, int32_t) const;    \
  template void Executor<T>::run_persistent(int32_t, int32_t, int32_t);
CAVS_INSTANTIATE(float)
CAVS_INSTANTIATE(double)
#undef CAVS_INSTANTIATE

}  // namespace cavs::cuda
