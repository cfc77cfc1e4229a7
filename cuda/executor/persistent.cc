// Loops whose narrow tasks one kernel walks: it is launched once for tasks that follow each other.
#include <algorithm>

#include "cuda/executor/executor.h"
#include "exec/spaces.h"

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
  for (size_t i = 0; i < compiled.persistent.size(); ++i) {
    const PersistentName& name = compiled.persistent[i];
    const Handle function = persistent_module_->function(name.name);
    const Persistent of{function, static_cast<unsigned>(name.blocks),
                        static_cast<unsigned>(name.shared), name.instructions,
                        arrived_.at(i * kLine)};
    if (device_->runs_at_once(function, of.blocks, kBlock, of.shared)) {
      persistent_.at(name.stage) = of;
    }
  }
  device_->synchronize();
}

// Whether a kernel that walks a loop may take a task; one without a body it passes over.
template <class T>
bool Executor<T>::narrow(int32_t stage, const BatchTask& task) const {
  const int32_t id = analysis_.bodies_of_stage[stage][spaces_.kinds[task.kind]];
  if (id < 0) return true;
  const int32_t edges = analysis_.bodies[id].edges ? task.edges.size() : 0;
  return std::max(task.rows.size(), edges) <= device_->switches().narrow_rows;
}

// Room for the largest narrow task of each body, no value over another: blocks need not wait for
// the last reader of what stood there before.
template <class T>
void Executor<T>::lay_out_narrow_scratch() {
  narrow_guards_.clear();
  for (size_t s = 0; s < persistent_.size(); ++s) {
    if (persistent_[s].function == nullptr) continue;
    const auto stage = static_cast<int32_t>(s);
    for (size_t kind = 0; kind < spaces_.kinds.size(); ++kind) {
      const int32_t id = analysis_.bodies_of_stage[s][spaces_.kinds[kind]];
      if (id < 0) continue;
      RowRange most, edges;  // as many
      for (const BatchTask& task : schedule_->tasks) {
        if (static_cast<size_t>(task.kind) != kind || !narrow(stage, task)) continue;
        most.end = std::max(most.end, task.rows.size());
        edges.end = std::max(edges.end, task.edges.size());
      }
      for (const ScratchUse& use : analysis_.bodies[id].scratch) {
        const Buffer& b = program_->buffers[use.buffer];
        const size_t rows = (is_edge(b.space) ? edges : most).size();
        const size_t bytes = value_bytes(use.buffer) * b.width * rows;
        narrow_offsets_[use.buffer] = narrow_guards_.place(use.buffer, bytes);
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

// How many tasks, from the one that a loop comes to as number `from`, one kernel may walk; none
// where that would spare no launch.
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

// Its parameters are those that cavs.codegen.persistent lists.
template <class T>
void Executor<T>::run_persistent(int32_t stage, int32_t from, int32_t count) {
  const Persistent& of = persistent_[stage];
  ++launches_;
  words_.clear();
  arguments_.clear();
  sources_.assign(of.instructions.size(), {});
  given_.clear();
  const auto words_from = [&](size_t first) {
    for (size_t i = first; i < words_.size(); ++i) given_.push_back({true, i, sizeof(uint64_t)});
  };
  narrow_ = true;
  const std::unique_ptr<bool, void (*)(bool*)> wide_again(&narrow_, [](bool* at) { *at = false; });
  for (size_t n = 0; n < of.instructions.size(); ++n) {
    const int32_t id = of.instructions[n];
    const Bound<T>& b = bound_.instructions[id];
    if (profiling_) ++calls_[id];
    const size_t first = words_.size();
    const InstructionTraits& traits = traits_of(b.kind);
    if (traits.fused) {
      add_map_words(id, 0);
      words_from(first);
      continue;
    }
    const bool product = traits.packed_weight;
    for (int32_t i = 0; i < b.count; ++i) sources_[n].of[i] = source(b.first + i, 0);
    sources_[n].count = b.count;
    given_.push_back({false, n, product ? sizeof(Sources<T>) : sizeof(Rows<T>)});
    if (product) words_.push_back(reinterpret_cast<uint64_t>(b.packed));
    const Target out = target(id, 0);
    words_.push_back(reinterpret_cast<uint64_t>(out.data));
    words_.push_back(static_cast<uint64_t>(out.stride));
    words_.push_back(static_cast<uint64_t>(out.base));
    words_from(first);
  }
  const int32_t* tasks = staging_.at<int32_t>(tasks_at_);
  const int32_t start = task_number(stage, from);
  const int32_t step = program_->stages[stage].reversed ? -1 : 1;
  arguments_ = {{&tasks, sizeof(tasks)},
                {&start, sizeof(start)},
                {&count, sizeof(count)},
                {&step, sizeof(step)},
                {&of.arrived, sizeof(of.arrived)}};
  for (const Given& g : given_) {
    const void* at = g.word ? static_cast<const void*>(&words_[g.at]) : &sources_[g.at];
    arguments_.push_back({at, g.bytes});
  }
  Grid grid{of.blocks};
  grid.shared = of.shared;
  grid.cooperative = true;
  device_->launch_kernel(of.function, grid, arguments_, kBlock);
}

#define CAVS_INSTANTIATE(T)                                           \
  template void Executor<T>::load_persistent(const Compiled<T>&);     \
  template void Executor<T>::lay_out_narrow_scratch();                \
  template void Executor<T>::stage_tasks();                           \
  template int32_t Executor<T>::narrow_tasks(int32_t, int32_t) const; \
  template void Executor<T>::run_persistent(int32_t, int32_t, int32_t);
CAVS_INSTANTIATE(float)
CAVS_INSTANTIATE(double)
#undef CAVS_INSTANTIATE

}  // namespace cavs::cuda
