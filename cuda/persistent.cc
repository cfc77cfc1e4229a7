// Loops whose narrow tasks one kernel walks: it is launched once for tasks that follow each other.
#include <algorithm>

#include "exec/spaces.h"
#include "executor.h"

namespace cavs::cuda {
namespace {

constexpr size_t kTask = 5;  // numbers of a task: kind, its rows, its edge rows

}  // namespace

template <class T>
void Executor<T>::load_persistent(const Compiled<T>& compiled) {
  const Program& p = *program_;
  persistent_.resize(p.stages.size());
  narrow_offsets_.assign(p.buffers.size(), 0);
  if (compiled.persistent.empty()) return;
  persistent_module_ = std::make_unique<Module>(device_, compiled.persistent_image);
  arrived_.reserve(compiled.persistent.size() * kLine);
  device_->zero(arrived_.at(), arrived_.bytes());
  size_t bytes = 0;
  for (size_t i = 0; i < compiled.persistent.size(); ++i) {
    const PersistentName& name = compiled.persistent[i];
    Persistent& of = persistent_.at(name.stage);
    const Handle function = persistent_module_->function(name.name);
    of = {function, static_cast<unsigned>(name.blocks), static_cast<unsigned>(name.shared),
          name.instructions, arrived_.at(i * kLine)};
    if (!device_->runs_at_once(function, of.blocks, kBlock, of.shared)) of = {};
    for (const int32_t body : analysis_.bodies_of_stage.at(name.stage)) {
      if (body < 0) continue;
      for (const ScratchUse& use : analysis_.bodies[body].scratch) {
        narrow_offsets_[use.buffer] = bytes;
        bytes += lines(value_bytes(use.buffer) * p.buffers[use.buffer].width *
                       device_->switches().narrow_rows);
      }
    }
  }
  narrow_scratch_.reserve(bytes);
  device_->synchronize();
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

// How many tasks, from the one that a loop comes to as number `from`, one kernel may walk.
template <class T>
int32_t Executor<T>::narrow_tasks(int32_t stage, int32_t from) const {
  if (persistent_[stage].function == nullptr) return 0;
  const auto n = static_cast<int32_t>(schedule_->tasks.size());
  int32_t i = from;
  for (; i < n; ++i) {
    const BatchTask& task = schedule_->tasks[task_number(stage, i)];
    const int32_t id = analysis_.bodies_of_stage[stage][spaces_.kinds[task.kind]];
    if (id < 0) continue;
    const int32_t edges = analysis_.bodies[id].edges ? task.edges.size() : 0;
    if (std::max(task.rows.size(), edges) > device_->switches().narrow_rows) break;
  }
  return i - from;
}

// Its parameters are those that cavs.codegen.persistent lists.
template <class T>
void Executor<T>::run_persistent(int32_t stage, int32_t from, int32_t count) {
  const Persistent& of = persistent_[stage];
  ++launches_;
  words_.clear();
  arguments_.clear();
  std::vector<Sources<T>> sources(of.instructions.size());
  struct Where {
    bool in_words;
    size_t at, bytes;
  };
  std::vector<Where> where;
  const auto words_from = [&](size_t first) {
    for (size_t i = first; i < words_.size(); ++i) where.push_back({true, i, sizeof(uint64_t)});
  };
  narrow_ = true;
  for (size_t n = 0; n < of.instructions.size(); ++n) {
    const int32_t id = of.instructions[n];
    const Bound<T>& b = bound_.instructions[id];
    if (profiling_) ++calls_[id];
    const size_t first = words_.size();
    if (b.kind == InstructionKind::kMap) {
      add_map_words(id, 0);
      words_from(first);
      continue;
    }
    const bool product = b.kind == InstructionKind::kMatmul;
    for (int32_t i = 0; i < b.count; ++i) sources[n].of[i] = source(b.first + i, 0);
    sources[n].count = b.count;
    where.push_back({false, n, product ? sizeof(Sources<T>) : sizeof(Rows<T>)});
    if (product) words_.push_back(reinterpret_cast<uint64_t>(b.packed));
    const Target out = target(id, 0);
    words_.push_back(reinterpret_cast<uint64_t>(out.data));
    words_.push_back(static_cast<uint64_t>(out.stride));
    words_.push_back(static_cast<uint64_t>(out.base));
    words_from(first);
  }
  narrow_ = false;
  const int32_t* tasks = staging_.at<int32_t>(tasks_at_);
  const int32_t start = task_number(stage, from);
  const int32_t step = program_->stages[stage].reversed ? -1 : 1;
  arguments_ = {{&tasks, sizeof(tasks)},
                {&start, sizeof(start)},
                {&count, sizeof(count)},
                {&step, sizeof(step)},
                {&of.arrived, sizeof(of.arrived)}};
  for (const Where& w : where) {
    const void* at = w.in_words ? static_cast<const void*>(&words_[w.at]) : &sources[w.at];
    arguments_.push_back({at, w.bytes});
  }
  Grid grid{of.blocks};
  grid.shared = of.shared;
  grid.cooperative = true;
  device_->launch_kernel(of.function, grid, arguments_, kBlock);
}

#define CAVS_INSTANTIATE(T)                                           \
  template void Executor<T>::load_persistent(const Compiled<T>&);     \
  template void Executor<T>::stage_tasks();                           \
  template int32_t Executor<T>::narrow_tasks(int32_t, int32_t) const; \
  template void Executor<T>::run_persistent(int32_t, int32_t, int32_t);
CAVS_INSTANTIATE(float)
CAVS_INSTANTIATE(double)
#undef CAVS_INSTANTIATE

}  // namespace cavs::cuda
