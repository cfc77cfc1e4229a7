// Policies of batching: which kind runs next, where vertices of several kinds are ready.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "schedule/kinds.h"

namespace cavs {

// A finite state machine whose state is the set of kinds that have ready vertices. For a set that
// it does not know, it chooses the kind whose remaining vertices have the least mean level (the
// agenda of DyNet). Without choices it is the agenda.
struct SchedulingPolicy {
  std::vector<uint64_t> kinds;                    // keys, at most 64: bit i of a set is kinds[i]
  std::unordered_map<uint64_t, int32_t> choices;  // set of ready kinds -> number of the one to run
};

// The structure of a batch with the kinds of its vertices. Those without children have kind -1 and
// have run before all others.
struct KindedGraph {
  KindedGraph(const Graph& graph, const Kinds& of);
  int32_t num_vertices() const { return static_cast<int32_t>(kind.size()); }
  int32_t num_kinds() const { return static_cast<int32_t>(keys.size()); }

  const Graph& graph;
  std::vector<uint64_t> keys;            // those of kinds with children
  PooledVector<int32_t> kind;            // vertex -> index into keys, or -1
  PooledVector<int32_t> parent_offsets;  // vertex -> range in parents
  PooledVector<int32_t> parents;         // one for each edge
  PooledVector<int32_t> arity;           // vertex -> number of edges to children with children
  std::vector<int64_t> count, levels;    // by kind: number of vertices, sum of their levels
};

// The ready vertices of a KindedGraph while its tasks run.
class Frontier {
 public:
  explicit Frontier(const KindedGraph& graph);
  // Begin again: nothing has run.
  void begin();
  bool empty() const { return ready_kinds_ == 0; }
  int32_t ready(int32_t kind) const { return static_cast<int32_t>(ready_[kind].size()); }
  // The ready kind whose remaining vertices have the least mean level.
  int32_t agenda() const;
  // Run all ready vertices of a kind; the result is valid until the next call.
  const std::vector<int32_t>& run(int32_t kind);

 private:
  const KindedGraph& graph_;
  PooledVector<int32_t> pending_;  // vertex -> number of edges to children that have not run
  std::vector<std::vector<int32_t>> ready_;
  std::vector<int32_t> task_;
  std::vector<int64_t> count_, levels_;  // vertices that have not run
  int32_t ready_kinds_ = 0;
};

// Chooses the next kind by a policy.
class Chooser {
 public:
  Chooser(const SchedulingPolicy& policy, const KindedGraph& graph);
  int32_t next(const Frontier& frontier) const;

 private:
  const SchedulingPolicy& policy_;
  std::vector<int32_t> kind_of_bit_, bit_of_kind_;  // -1: not in the batch, not in the policy
};

// The tasks of a batch in the order of a policy: first one for each kind without children.
struct TaskOrder {
  PooledVector<int32_t> task;  // vertex -> number of its task
  std::vector<int32_t> step;   // task -> number of its step; tasks of one step are independent
};
TaskOrder order_tasks(const Graph& graph, const Kinds& kinds, const SchedulingPolicy& policy);

// The number of tasks of vertices with children in the order of a policy.
int64_t count_tasks(const KindedGraph& graph, const SchedulingPolicy& policy);

// The vertices by ascending level, those of one level in order.
PooledVector<int32_t> vertices_by_level(const Graph& graph);

// A lower bound on the tasks of any policy: the sum, over the kinds, of the largest number of
// vertices of the kind on one path (ED-Batch, Chen et al. 2023), since such vertices need a task
// each and no task holds two kinds. kind: of each vertex, -1 for those that need no task. Time and
// memory are linear in vertices and edges times kinds.
int64_t fewest_tasks(const Graph& graph, const PooledVector<int32_t>& kind, int32_t num_kinds);

}  // namespace cavs
