// Learning of a policy from a batch, by tabular Q-learning (ED-Batch, Chen et al. 2023).
#pragma once

#include <cstdint>

#include "schedule/policy.h"

namespace cavs {

struct LearnedPolicy {
  SchedulingPolicy policy;
  int64_t tasks, bound;  // without those of vertices that have no children
  int32_t episodes;
};

// Learn a policy that runs a batch in few tasks; never more than the agenda. The reward of a task
// is -1 plus the number of its vertices over the number of vertices of its kind that would be ready
// if only those of its kind had to be waited for. Ends at the lower bound, or when no better table
// has been found for some time. At most 64 kinds with children; the agenda for more. Deterministic.
LearnedPolicy learn_policy(const KindedGraph& graph, uint64_t seed);

}  // namespace cavs
