// Where sums run: concurrently with a loop, jointly with other sums, and on which lane; and when
// finished gradients are copied to the host.
#include <algorithm>
#include <limits>
#include <utility>

#include "cuda/executor/executor.h"

namespace cavs::cuda {
namespace {

// Elements [begin, end) of a gradient that a stage writes.
struct WrittenRange {
  int32_t begin, end, stage;
};
struct GradientWrites {
  int32_t last = -1;  // stage
  std::vector<WrittenRange> ranges;
};

// The range of a result, whose rows below the first are those of a product.
WrittenRange range_of(const Instruction& in, int32_t buffer_width, int32_t stage) {
  const auto rows = static_cast<int32_t>(std::max<int64_t>(width_of(in, 0, in.split), 1));
  const int32_t below = (rows - 1) * buffer_width;
  return {in.out.column, in.out.column + below + in.out.width, stage};
}

std::vector<int32_t> instructions_of(const Stage& stage) {
  std::vector<int32_t> ids = stage.body;
  for (const auto& body : stage.bodies) ids.insert(ids.end(), body.begin(), body.end());
  return ids;
}

}  // namespace

// A sum into gradients whose operands are ready before a later loop runs concurrently with that
// loop, which seldom fills the device (streaming, section 6.5.4 of Cavs). Its operands are live
// until its own stage, so no buffer is reused meanwhile. Sums over the same rows are launched
// jointly, at the first stage of one of them where the operands and the previous values of all are
// ready.
template <class T>
void Executor<T>::plan_sums() {
  const Program& p = *program_;
  const auto stages = static_cast<int32_t>(p.stages.size());
  const std::vector<int32_t>& step = analysis_.step_of_stage;
  std::vector<int32_t> written(p.buffers.size(), -1);  // last stage that writes a buffer
  std::vector<GradientWrites> gradients(parameters_->sizes().size());
  for (int32_t s = 0; s < stages; ++s) {
    launched_at_.push_back(s);
    leader_.push_back(s);
    joint_.emplace_back();
    const std::vector<int32_t> ids = instructions_of(p.stages[s]);
    // Last stages that write an operand, a gradient, and the same elements of a gradient.
    int32_t ready = -1, last = -1, overlapped = -1;
    bool sums = p.stages[s].type == StageType::kGlobal;
    for (int32_t id : ids) {
      const Instruction& in = p.instructions[id];
      for (const Operand& o : in.inputs) ready = std::max(ready, written[o.buffer]);
      each_output(in, [&](int32_t buffer) { written[buffer] = s; });
      const InstructionTraits& traits = traits_of(in);
      if (traits.fused) continue;
      int32_t param = -1;
      WrittenRange own{0, std::numeric_limits<int32_t>::max(), s};
      if (traits.sparse_gradient) {
        param = in.argument2;
      } else {
        const Buffer& out = p.buffers[in.out.buffer];
        own = range_of(in, out.width, s);
        if (out.role == Role::kGrad) param = out.index;
      }
      sums &= param >= 0;
      if (param < 0) continue;
      GradientWrites& gradient = gradients[param];
      if (gradient.last != s) last = std::max(last, std::exchange(gradient.last, s));
      for (const WrittenRange& other : gradient.ranges) {
        if (other.begin < own.end && own.begin < other.end) {
          overlapped = std::max(overlapped, other.stage);
        }
      }
      gradient.ranges.push_back(own);
    }
    if (!sums) continue;
    for (int32_t t = std::max(ready, last) + 1; t < s && launched_at_[s] == s; ++t) {
      if (p.stages[t].type == StageType::kLoop) launched_at_[s] = t;
    }
    const Instruction& first = p.instructions[ids[0]];
    if (launched_at_[s] != s || traits_of(first).cut != Cut::kColumns) continue;
    const int32_t after = std::max(ready, overlapped);
    int32_t t = after + 1;  // in a later step, since a step does not wait for its other lane
    while (t < s && after >= 0 && step[t] == step[after]) ++t;
    const auto joins = [&](const std::vector<int32_t>& others) {
      return !others.empty() && others.size() < kMostSources &&
             p.instructions[others[0]].space == first.space;
    };
    while (t < s && !joins(joint_[t])) ++t;
    leader_[s] = t;
    joint_[t].push_back(ids[0]);
  }
}

// True for a stage that runs concurrently with a loop, and for every other sum of a step, whose
// sums are independent, unless it is part of a joint launch.
template <class T>
bool Executor<T>::on_second_lane(int32_t s) const {
  if (launched_at_[s] != s) return true;
  const std::vector<int32_t>& step = analysis_.step_of_stage;
  const bool starts = s == 0 || step[s - 1] != step[s];
  const bool single = leader_[s] == s && joint_[s].size() < 2;
  return !starts && s % 2 == 1 && single;
}

// A gradient is copied behind the last stage that writes it, on the lane of that stage: earlier
// steps have been joined. If a stage of the same step writes a part on the other lane, the copy
// waits for the end of the step.
template <class T>
void Executor<T>::plan_copies() {
  const std::vector<int32_t>& last = analysis_.gradient_stage;
  const std::vector<int32_t>& step = analysis_.step_of_stage;
  const auto stages = static_cast<int32_t>(step.size());
  std::vector<bool> both_lanes(last.size(), false);
  for (int32_t s = 0; s < stages; ++s) {
    for (int32_t id : program_->stages[s].body) {  // loops are steps of their own
      for (int32_t param : analysis_.gradients_of_instruction[id]) {
        const int32_t end = last[param];
        if (step[s] == step[end] && on_second_lane(s) != on_second_lane(end)) {
          both_lanes[param] = true;
        }
      }
    }
  }
  copied_after_stage_.resize(stages);
  copied_after_step_.resize(analysis_.steps);
  for (int32_t i : analysis_.gradient_order) {
    (both_lanes[i] ? copied_after_step_[step[last[i]]] : copied_after_stage_[last[i]]).push_back(i);
  }
}

template void Executor<float>::plan_sums();
template void Executor<double>::plan_sums();
template bool Executor<float>::on_second_lane(int32_t) const;
template bool Executor<double>::on_second_lane(int32_t) const;
template void Executor<float>::plan_copies();
template void Executor<double>::plan_copies();

}  // namespace cavs::cuda
