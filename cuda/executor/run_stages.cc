// Launches of a batch: every stage in order, every task of a loop, every instruction of a task.
#include <algorithm>

#include "cuda/executor/launchers.h"
#include "exec/spaces.h"

namespace cavs::cuda {

template <class T>
void Executor<T>::run_stages() {
  const auto stages = static_cast<int32_t>(program_->stages.size());
  const std::vector<int32_t>& step = analysis_.step_of_stage;
  mark_stage(0);
  for (int32_t s = 0; s < stages; ++s) {
    bool forked = false;
    for (int32_t later = s + 1; later < stages; ++later) {
      if (launched_at_[later] != s) continue;
      if (!forked) device_->fork();
      forked = true;
      run_on_second_lane(later);
    }
    // Operands of lane 1 may be overwritten after the stage, or step, that lane 0 runs meanwhile.
    const bool more = s + 1 < stages && step[s + 1] == step[s];
    const bool starts = s == 0 || step[s - 1] != step[s];
    if (starts && more) device_->fork();
    if (launched_at_[s] == s) {
      if (on_second_lane(s)) {
        run_on_second_lane(s);
      } else {
        run_stage(s);
      }
    }
    if (!more && (launched_at_[s] != s || !starts)) device_->join();
    if (!more) copy_gradients(copied_after_step_[step[s]]);
    mark_stage(s + 1);
  }
}

template <class T>
void Executor<T>::run_on_second_lane(int32_t stage) {
  device_->use_lane(1);
  run_stage(stage);
  device_->use_lane(0);
}

template <class T>
void Executor<T>::run_stage(int32_t s) {
  timeline_.on_lane(device_->lane(), program_->stages[s].label, [&] { run_bodies(s); });
  copy_gradients(copied_after_stage_[s]);
}

template <class T>
void Executor<T>::run_bodies(int32_t s) {
  const Stage& stage = program_->stages[s];
  const std::vector<int32_t>& bodies = analysis_.bodies_of_stage[s];
  switch (stage.type) {
    case StageType::kRows:
      if (bodies[0] >= 0) run_body(analysis_.bodies[bodies[0]], spaces_.rows(stage.space));
      break;
    case StageType::kLoop:
      run_loop(s);
      break;
    case StageType::kGlobal: {
      if (leader_[s] != s) break;  // launched there
      const auto rows = [&](int32_t id) { return spaces_.rows(program_->instructions[id].space); };
      if (!joint_[s].empty()) {
        for (int32_t id : joint_[s]) count_launch(id);
        Launchers<T>::joint_sum_rows(*this, joint_[s], rows(stage.body[0]));
      } else {
        for (int32_t id : stage.body) launch(id, {rows(id), rows(id).begin, -1});
      }
    }
  }
}

// Copy gradients that are final after the work given to the current lane so far.
template <class T>
void Executor<T>::copy_gradients(const std::vector<int32_t>& params) {
  if (!mirror_.armed()) return;
  for (int32_t param : params) {
    const auto of = std::find_if(factors_.begin(), factors_.end(),
                                 [&](const auto& f) { return f->of.param == param; });
    if (of != factors_.end()) {
      mirror_.copy_factors(param, **of);
    } else if (analysis_.dense_gradient[param]) {
      mirror_.copy_dense(param, grads_[param]);
    }
    for (size_t t = 0; t < tables_.size(); ++t) {
      const Table& table = tables_[t];
      if (table.param != param || table.dense) continue;
      mirror_.copy_rows(param, t, table_at_[t],
                        static_cast<int64_t>(table.slots.size()) * table.width);
    }
  }
}

// Number of the task that a loop runs as its i-th.
template <class T>
int32_t Executor<T>::task_number(int32_t stage, int32_t i) const {
  const auto n = static_cast<int32_t>(schedule_->tasks.size());
  return program_->stages[stage].reversed ? n - 1 - i : i;
}

template <class T>
void Executor<T>::run_loop(int32_t stage) {
  const auto n = static_cast<int32_t>(schedule_->tasks.size());
  for (int32_t i = 0; i < n;) {
    if (const int32_t count = narrow_tasks(stage, i); count > 1) {
      run_persistent(stage, i, count);
      i += count;
    } else {
      run_task(stage, task_number(stage, i++));
    }
  }
}

template <class T>
void Executor<T>::run_task(int32_t stage, int32_t t) {
  const BatchTask& task = schedule_->tasks[t];
  const int32_t id = analysis_.bodies_of_stage[stage][spaces_.kinds[task.kind]];
  if (id < 0) return;
  const Body& body = analysis_.bodies[id];
  run_body(body, task.rows);
  for (int32_t sum : body.sums) {
    const RowRange rows = rows_of(sum, body.space, task.rows);
    if (rows.size() > 0) launch(sum, {rows, rows.begin, t});
  }
}

template <class T>
void Executor<T>::run_body(const Body& body, RowRange rows) {
  if (rows.size() == 0) return;
  for (int32_t id : body.instructions) {
    const RowRange own = rows_of(id, body.space, rows);
    if (own.size() > 0) launch(id, {own, rows.begin, -1});
  }
}

// Rows of an instruction, given those of its body.
template <class T>
RowRange Executor<T>::rows_of(int32_t id, Space body, RowRange rows) const {
  const int32_t relation = relation_of(program_->instructions[id].space);
  return is_vertex(body) && relation != kNoRelation ? spaces_.related(rows, relation) : rows;
}

template <class T>
void Executor<T>::launch(int32_t id, const LaunchRows& rows) {
  static constexpr void (*kLaunchers[])(Executor<T>&, int32_t, const LaunchRows&) = {
#define CAVS_LAUNCHER(enumerator, name) &Launchers<T>::name,
      CAVS_INSTRUCTIONS(CAVS_LAUNCHER)
#undef CAVS_LAUNCHER
  };
  count_launch(id);
  kLaunchers[static_cast<size_t>(program_->instructions[id].type)](*this, id, rows);
}

template <class T>
void Executor<T>::count_launch(int32_t id) {
  ++launches_;
  if (profiling_) ++calls_[id];
}

#define CAVS_INSTANTIATE(T)                                               \
  template void Executor<T>::run_stages();                                \
  template RowRange Executor<T>::rows_of(int32_t, Space, RowRange) const; \
  template int32_t Executor<T>::task_number(int32_t, int32_t) const;
CAVS_INSTANTIATE(float)
CAVS_INSTANTIATE(double)
#undef CAVS_INSTANTIATE

}  // namespace cavs::cuda
