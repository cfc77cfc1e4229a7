// Launches: every stage in order, every task of a loop, every instruction of a task.
#include <algorithm>
#include <limits>
#include <utility>

#include "cuda/executor/executor.h"
#include "cuda/executor/launchers.h"
#include "exec/spaces.h"

namespace cavs::cuda {
// Rows of an instruction, given those of the body it stands in.
template <class T>
RowRange Executor<T>::rows_of(int32_t id, Space body, RowRange rows) const {
  if (!is_vertex(body) || !is_edge(program_->instructions[id].space)) return rows;
  const PooledVector<int32_t>& offsets = schedule_->edge_offsets;
  return {offsets[rows.begin], offsets[rows.end]};
}

// Sums into gradients whose operands are ready before a later loop run beside that loop: it seldom
// fills the device (the streaming of Cavs, section 6.5.4). What they read lives until their own
// stage, so nothing takes its place meanwhile. So do sums over the same rows that one kernel makes:
// at the first stage of such a sum where all that they read, and what they are added to, is there.
template <class T>
void Executor<T>::plan_sums() {
  const Program& p = *program_;
  const auto stages = static_cast<int32_t>(p.stages.size());
  std::vector<int32_t> written(p.buffers.size(), -1);  // last stage that writes a buffer
  std::vector<int32_t> of_parameter(parameters_->sizes().size(), -1);
  const std::vector<int32_t>& step = analysis_.step_of_stage;
  struct Columns {
    int32_t begin, end, stage;
  };
  std::vector<std::vector<Columns>> columns(of_parameter.size());  // of gradients, as written
  for (int32_t s = 0; s < stages; ++s) {
    start_.push_back(s);
    leader_.push_back(s);
    together_.emplace_back();
    std::vector<int32_t> ids = p.stages[s].body;
    for (const auto& body : p.stages[s].bodies) ids.insert(ids.end(), body.begin(), body.end());
    int32_t ready = -1, last = -1, overlapped = -1;
    bool sums = p.stages[s].kind == StageKind::kGlobal;
    for (int32_t id : ids) {
      const Instruction& in = p.instructions[id];
      for (const Operand& o : in.inputs) ready = std::max(ready, written[o.buffer]);
      const bool lookup = traits_of(in).sparse_gradient;
      const Buffer* const out = in.out.buffer < 0 ? nullptr : &p.buffers[in.out.buffer];
      sums &= lookup || out == nullptr || out->role == Role::kGrad;
      const int32_t param = lookup                            ? in.argument2
                            : out && out->role == Role::kGrad ? out->index
                                                              : -1;
      if (param >= 0) {
        if (of_parameter[param] != s) last = std::max(last, std::exchange(of_parameter[param], s));
        Columns own{0, std::numeric_limits<int32_t>::max(), s};
        if (!lookup) {
          const auto rows = static_cast<int32_t>(std::max<int64_t>(width_of(in, 0, in.split), 1));
          own = {in.out.column, in.out.column + (rows - 1) * out->width + in.out.width, s};
        }
        for (const Columns& c : columns[param]) {
          if (c.begin < own.end && own.begin < c.end) overlapped = std::max(overlapped, c.stage);
        }
        columns[param].push_back(own);
      }
      each_output(in, [&](int32_t buffer) { written[buffer] = s; });
    }
    for (int32_t t = std::max(ready, last) + 1; sums && t < s; ++t) {
      if (p.stages[t].kind != StageKind::kLoop) continue;
      start_.back() = t;
      break;
    }
    if (!sums || start_.back() != s || traits_of(p.instructions[ids[0]]).cut != Cut::kColumns) {
      continue;
    }
    const int32_t after = std::max(ready, overlapped);
    int32_t t = after + 1;  // of a later step: within one, what runs beside is not waited for
    while (t < s && after >= 0 && step[t] == step[after]) ++t;
    const auto joins = [&](const std::vector<int32_t>& others) {
      return !others.empty() && others.size() < kMostSources &&
             p.instructions[others[0]].space == p.instructions[ids[0]].space;
    };
    while (t < s && !joins(together_[t])) ++t;
    leader_.back() = t;
    together_[t].push_back(ids[0]);
  }
}

// Whether a stage goes to lane 1: all that start beside a loop do. Sums of one step are
// independent: every other one does, unless others are made with it.
template <class T>
bool Executor<T>::beside(int32_t s) const {
  if (start_[s] != s) return true;
  const std::vector<int32_t>& step = analysis_.step_of_stage;
  const bool starts = s == 0 || step[s - 1] != step[s];
  const bool alone = leader_[s] == s && together_[s].size() < 2;
  return !starts && s % 2 == 1 && alone;
}

// A gradient leaves with the last stage that writes it, behind it on its lane. What earlier steps
// wrote comes before that, for steps are joined; but where a stage of the same step writes a part
// on the other lane, the gradient stays until the step has been joined.
template <class T>
void Executor<T>::plan_leaving() {
  const std::vector<int32_t>& last = analysis_.gradient_stage;
  const std::vector<int32_t>& step = analysis_.step_of_stage;
  const auto stages = static_cast<int32_t>(step.size());
  std::vector<bool> apart(last.size(), false);
  for (int32_t s = 0; s < stages; ++s) {
    for (int32_t id : program_->stages[s].body) {  // loops are steps of their own
      for (int32_t param : analysis_.gradients_of_instruction[id]) {
        const int32_t end = last[param];
        if (step[s] == step[end] && beside(s) != beside(end)) apart[param] = true;
      }
    }
  }
  done_after_.resize(stages);
  done_after_step_.resize(analysis_.steps);
  for (int32_t i : analysis_.gradient_order) {
    (apart[i] ? done_after_step_[step[last[i]]] : done_after_[last[i]]).push_back(i);
  }
}

template <class T>
void Executor<T>::walk() {
  const auto stages = static_cast<int32_t>(program_->stages.size());
  const std::vector<int32_t>& step = analysis_.step_of_stage;
  timed(0);
  for (int32_t s = 0; s < stages; ++s) {
    bool forked = false;
    for (int32_t later = s + 1; later < stages; ++later) {
      if (start_[later] != s) continue;
      if (!forked) device_->fork();
      forked = true;
      run_beside(later);
    }
    // What lane 1 reads may be overwritten after the stage, or the step, that it belongs to.
    const bool more = s + 1 < stages && step[s + 1] == step[s];
    const bool starts = s == 0 || step[s - 1] != step[s];
    if (starts && more) device_->fork();
    if (start_[s] == s) {
      if (beside(s)) {
        run_beside(s);
      } else {
        run_stage(s);
      }
    }
    if (!more && (start_[s] != s || !starts)) device_->join();
    if (!more) leave(done_after_step_[step[s]]);
    timed(s + 1);
  }
}

template <class T>
void Executor<T>::run_beside(int32_t stage) {
  device_->use_lane(1);
  run_stage(stage);
  device_->use_lane(0);
}

template <class T>
void Executor<T>::run_stage(int32_t s) {
  timeline_.on_lane(device_->lane(), program_->stages[s].label, [&] { run_bodies(s); });
  leave(done_after_[s]);
}

template <class T>
void Executor<T>::run_bodies(int32_t s) {
  const Stage& stage = program_->stages[s];
  const std::vector<int32_t>& bodies = analysis_.bodies_of_stage[s];
  switch (stage.kind) {
    case StageKind::kRows:
      if (bodies[0] >= 0) run_body(analysis_.bodies[bodies[0]], spaces_.rows(stage.space));
      break;
    case StageKind::kLoop:
      walk_loop(s);
      break;
    case StageKind::kGlobal: {
      if (leader_[s] != s) break;  // done there
      const auto rows = [&](int32_t id) { return spaces_.rows(program_->instructions[id].space); };
      if (!together_[s].empty()) {
        for (int32_t id : together_[s]) count_launch(id);
        Launchers<T>::sum_rows_together(*this, together_[s], rows(stage.body[0]));
      } else {
        for (int32_t id : stage.body) launch(id, {rows(id), rows(id).begin, -1});
      }
    }
  }
}

// Gradients that are done by what the present lane has been given.
template <class T>
void Executor<T>::leave(const std::vector<int32_t>& params) {
  if (!mirror_.armed()) return;
  for (int32_t param : params) {
    const auto of = std::find_if(factors_.begin(), factors_.end(),
                                 [&](const auto& f) { return f->of.param == param; });
    if (of != factors_.end()) {
      mirror_.leave_factors(param, **of);
    } else if (analysis_.dense_gradient[param]) {
      mirror_.leave(param, grads_[param]);
    }
    for (size_t t = 0; t < tables_.size(); ++t) {
      const Table& table = tables_[t];
      if (table.param != param || table.dense) continue;
      mirror_.leave_rows(param, t, table_at_[t],
                         static_cast<int64_t>(table.slots.size()) * table.width);
    }
  }
}

// The i-th task that a loop comes to.
template <class T>
int32_t Executor<T>::task_number(int32_t stage, int32_t i) const {
  const auto n = static_cast<int32_t>(schedule_->tasks.size());
  return program_->stages[stage].reversed ? n - 1 - i : i;
}

template <class T>
void Executor<T>::walk_loop(int32_t stage) {
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

template <class T>
void Executor<T>::count_launch(int32_t id) {
  ++launches_;
  if (profiling_) ++calls_[id];
}

template <class T>
void Executor<T>::launch(int32_t id, const LaunchRows& rows) {
  static constexpr void (*kLaunchers[])(Executor<T>&, int32_t, const LaunchRows&) = {
#define CAVS_LAUNCHER(enumerator, name) &Launchers<T>::name,
      CAVS_INSTRUCTIONS(CAVS_LAUNCHER)
#undef CAVS_LAUNCHER
  };
  count_launch(id);
  kLaunchers[static_cast<size_t>(program_->instructions[id].kind)](*this, id, rows);
}

#define CAVS_INSTANTIATE(T)                                               \
  template void Executor<T>::plan_sums();                                 \
  template void Executor<T>::plan_leaving();                              \
  template void Executor<T>::walk();                                      \
  template RowRange Executor<T>::rows_of(int32_t, Space, RowRange) const; \
  template int32_t Executor<T>::task_number(int32_t, int32_t) const;
CAVS_INSTANTIATE(float)
CAVS_INSTANTIATE(double)
#undef CAVS_INSTANTIATE

}  // namespace cavs::cuda
