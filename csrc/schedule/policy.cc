#include "schedule/policy.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace cavs {

KindedGraph::KindedGraph(const Graph& of, const Kinds& kinds)
    : graph(of),
      kind(of.num_vertices()),
      parent_offsets(of.num_vertices() + 1, 0),
      parents(of.num_edges()),
      arity(of.num_vertices(), 0) {
  std::vector<int32_t> number(kinds.keys.size(), -1);
  for (const int32_t k : kinds.order) {
    if (!has_children(kinds.keys[k])) continue;
    number[k] = num_kinds();
    keys.push_back(kinds.keys[k]);
  }
  count.assign(keys.size(), 0);
  levels.assign(keys.size(), 0);
  const int32_t n = of.num_vertices();
  for (int32_t v = 0; v < n; ++v) {
    kind[v] = number[kinds.of_vertex[v]];
    if (kind[v] < 0) continue;
    ++count[kind[v]];
    levels[kind[v]] += of.level[v];
  }
  for (const int32_t child : of.children) ++parent_offsets[child + 1];
  for (int32_t v = 0; v < n; ++v) parent_offsets[v + 1] += parent_offsets[v];
  PooledVector<int32_t> next(parent_offsets.begin(), parent_offsets.end() - 1);
  for (int32_t v = 0; v < n; ++v) {
    for (int32_t e = of.offsets[v]; e < of.offsets[v + 1]; ++e) {
      parents[next[of.children[e]]++] = v;
      arity[v] += kind[of.children[e]] >= 0;
    }
  }
}

Frontier::Frontier(const KindedGraph& graph) : graph_(graph), ready_(graph.keys.size()) { begin(); }

void Frontier::begin() {
  pending_ = graph_.arity;
  count_ = graph_.count;
  levels_ = graph_.levels;
  for (auto& vertices : ready_) vertices.clear();
  for (int32_t v = 0; v < graph_.num_vertices(); ++v) {
    if (graph_.kind[v] >= 0 && pending_[v] == 0) ready_[graph_.kind[v]].push_back(v);
  }
  ready_kinds_ = 0;
  for (const auto& vertices : ready_) ready_kinds_ += !vertices.empty();
}

int32_t Frontier::agenda() const {
  using Wide = __int128;  // a sum of levels times a count exceeds int64 in chains of millions
  const auto mean_is_less = [&](int32_t k, int32_t than) {
    return Wide{levels_[k]} * count_[than] < Wide{levels_[than]} * count_[k];
  };
  int32_t best = -1;
  for (int32_t k = 0; k < graph_.num_kinds(); ++k) {
    if (ready_[k].empty()) continue;
    if (best < 0 || mean_is_less(k, best)) best = k;
  }
  return best;
}

const std::vector<int32_t>& Frontier::run(int32_t kind) {
  task_.clear();
  std::swap(task_, ready_[kind]);
  --ready_kinds_;
  count_[kind] -= static_cast<int64_t>(task_.size());
  for (const int32_t v : task_) {
    levels_[kind] -= graph_.graph.level[v];
    for (int32_t i = graph_.parent_offsets[v]; i < graph_.parent_offsets[v + 1]; ++i) {
      const int32_t parent = graph_.parents[i];
      if (--pending_[parent] > 0) continue;
      auto& ready = ready_[graph_.kind[parent]];
      ready_kinds_ += ready.empty();
      ready.push_back(parent);
    }
  }
  return task_;
}

Chooser::Chooser(const SchedulingPolicy& policy, const KindedGraph& graph)
    : policy_(policy), kind_of_bit_(policy.kinds.size(), -1), bit_of_kind_(graph.keys.size(), -1) {
  for (size_t bit = 0; bit < policy.kinds.size(); ++bit) {
    const auto at = std::find(graph.keys.begin(), graph.keys.end(), policy.kinds[bit]);
    if (at == graph.keys.end()) continue;
    kind_of_bit_[bit] = static_cast<int32_t>(at - graph.keys.begin());
    bit_of_kind_[kind_of_bit_[bit]] = static_cast<int32_t>(bit);
  }
}

int32_t Chooser::next(const Frontier& frontier) const {
  if (policy_.choices.empty()) return frontier.agenda();
  uint64_t ready = 0;
  for (size_t k = 0; k < bit_of_kind_.size(); ++k) {
    if (frontier.ready(static_cast<int32_t>(k)) == 0) continue;
    if (bit_of_kind_[k] < 0) return frontier.agenda();
    ready |= uint64_t{1} << bit_of_kind_[k];
  }
  const auto found = policy_.choices.find(ready);
  if (found == policy_.choices.end()) return frontier.agenda();
  return kind_of_bit_[found->second];
}

TaskOrder order_tasks(const Graph& graph, const Kinds& kinds, const SchedulingPolicy& policy) {
  TaskOrder out;
  out.task.resize(graph.num_vertices());
  std::vector<int32_t> task_of_kind(kinds.keys.size(), -1);
  for (const int32_t k : kinds.order) {
    if (has_children(kinds.keys[k])) continue;
    task_of_kind[k] = static_cast<int32_t>(out.step.size());
    out.step.push_back(0);
  }
  for (int32_t v = 0; v < graph.num_vertices(); ++v) out.task[v] = task_of_kind[kinds.of_vertex[v]];
  const KindedGraph kinded(graph, kinds);
  Frontier frontier(kinded);
  const Chooser chooser(policy, kinded);
  int32_t first = 0;  // task of the current step
  while (!frontier.empty()) {
    const auto task = static_cast<int32_t>(out.step.size());
    int32_t last_child = -1;
    for (const int32_t v : frontier.run(chooser.next(frontier))) {
      out.task[v] = task;
      for (int32_t e = graph.offsets[v]; e < graph.offsets[v + 1]; ++e) {
        last_child = std::max(last_child, out.task[graph.children[e]]);
      }
    }
    const bool follows = last_child >= first;  // a task of the current step
    if (follows) first = task;
    out.step.push_back((task > 0 ? out.step.back() : 0) + follows);
  }
  return out;
}

int64_t count_tasks(const KindedGraph& graph, const SchedulingPolicy& policy) {
  Frontier frontier(graph);
  const Chooser chooser(policy, graph);
  int64_t tasks = 0;
  for (; !frontier.empty(); ++tasks) frontier.run(chooser.next(frontier));
  return tasks;
}

PooledVector<int32_t> vertices_by_level(const Graph& graph) {
  const int32_t n = graph.num_vertices();
  PooledVector<int32_t> by_level(n), next(graph.num_levels + 1, 0);
  for (int32_t v = 0; v < n; ++v) ++next[graph.level[v] + 1];
  for (int32_t l = 0; l < graph.num_levels; ++l) next[l + 1] += next[l];
  for (int32_t v = 0; v < n; ++v) by_level[next[graph.level[v]]++] = v;
  return by_level;
}

int64_t fewest_tasks(const Graph& graph, const PooledVector<int32_t>& kind, int32_t num_kinds) {
  const auto kinds = static_cast<size_t>(num_kinds);
  std::vector<int32_t> longest(kind.size() * kinds, 0), most(kinds, 0);
  for (const int32_t v : vertices_by_level(graph)) {
    int32_t* const own = longest.data() + v * kinds;
    for (int32_t e = graph.offsets[v]; e < graph.offsets[v + 1]; ++e) {
      const int32_t* const of = longest.data() + graph.children[e] * kinds;
      for (size_t k = 0; k < kinds; ++k) own[k] = std::max(own[k], of[k]);
    }
    if (kind[v] >= 0) ++own[kind[v]];
    for (size_t k = 0; k < kinds; ++k) most[k] = std::max(most[k], own[k]);
  }
  return std::accumulate(most.begin(), most.end(), int64_t{0});
}

}  // namespace cavs
