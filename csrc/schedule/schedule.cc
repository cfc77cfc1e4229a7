#include "schedule/schedule.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "schedule/kinds.h"
#include "schedule/policy.h"

namespace cavs {
namespace {

// Replace counts by first positions: an exclusive prefix sum in place.
void to_positions(PooledVector<int32_t>* counts) {
  int32_t sum = 0;
  for (int32_t& count : *counts) sum += std::exchange(count, sum);
}

// The time at which each vertex runs, below `count`: its level, or the number of its task.
struct Times {
  const int32_t* of_vertex;
  int32_t count;
  const int32_t* level;  // time -> level of its tasks; null: equal to the time
};

// Fill `order` and `row` by a counting sort on (kind, time, number if `by_number`). One pass over
// combined bins, unless there are so many bins that the work would not be linear.
void sort_vertices(const Graph& in, const Kinds& kinds, const Times& times, bool by_number,
                   Schedule* schedule) {
  const auto n = static_cast<size_t>(in.num_vertices());
  const size_t num_times = times.count, num_kinds = kinds.keys.size();
  const size_t numbers = by_number ? in.num_numbers : 1;
  const auto number = [&](size_t v) { return by_number ? static_cast<size_t>(in.number[v]) : 0; };
  auto &order = schedule->order, &row = schedule->row;
  order.resize(n);
  row.resize(n);
  const auto kind = [&](size_t v) { return static_cast<size_t>(kinds.of_vertex[v]); };
  if (num_kinds * num_times * numbers <= 2 * n) {
    const auto bin = [&](size_t v) {
      return (kind(v) * num_times + times.of_vertex[v]) * numbers + number(v);
    };
    PooledVector<int32_t> next(num_kinds * num_times * numbers, 0);
    for (size_t v = 0; v < n; ++v) ++next[bin(v)];
    int32_t sum = 0;
    for (const int32_t k : kinds.order) {
      int32_t* const of_kind = next.data() + k * num_times * numbers;
      for (size_t i = 0; i < num_times * numbers; ++i) sum += std::exchange(of_kind[i], sum);
    }
    for (size_t v = 0; v < n; ++v) {
      row[v] = next[bin(v)]++;
      order[row[v]] = static_cast<int32_t>(v);
    }
    return;
  }
  PooledVector<int32_t> numbered(n), by_time(n), of_number(numbers, 0), of_time(num_times, 0);
  PooledVector<int32_t> of_kind(num_kinds, 0);
  for (size_t v = 0; v < n; ++v)
    ++of_number[number(v)], ++of_time[times.of_vertex[v]], ++of_kind[kind(v)];
  to_positions(&of_number);
  to_positions(&of_time);
  for (size_t v = 0; v < n; ++v) numbered[of_number[number(v)]++] = static_cast<int32_t>(v);
  for (const int32_t v : numbered) by_time[of_time[times.of_vertex[v]]++] = v;
  int32_t sum = 0;
  for (const int32_t k : kinds.order) sum += std::exchange(of_kind[k], sum);
  for (const int32_t v : by_time) {
    row[v] = of_kind[kind(v)]++;
    order[row[v]] = v;
  }
}

void number_edges(const Graph& in, Schedule* schedule) {
  const int32_t n = in.num_vertices(), m = in.num_edges();
  auto& offsets = schedule->edge_offsets;
  offsets.resize(n + 1);
  for (auto* values : {&schedule->edge_order, &schedule->child, &schedule->parent}) {
    values->resize(m);
  }
  int32_t *const edge = schedule->edge_order.data(), *const child = schedule->child.data();
  int32_t* const parent = schedule->parent.data();
  const int32_t* const row = schedule->row.data();
  int32_t at = 0, max_arity = 0;
  offsets[0] = 0;
  for (int32_t r = 0; r < n; ++r) {
    const int32_t v = schedule->order[r], begin = in.offsets[v], end = in.offsets[v + 1];
    for (int32_t e = begin; e < end; ++e, ++at) {
      edge[at] = e;
      child[at] = row[in.children[e]];
      parent[at] = r;
    }
    offsets[r + 1] = at;
    if (begin < end) max_arity = std::max(max_arity, in.position_of(end - 1, begin) + 1);
  }
  schedule->max_arity = max_arity;
  if (!in.position.empty()) schedule->position = schedule->permute_edges(in.position.data());
}

// Invert `child`: list the edge rows that read each row.
void invert_children(Schedule* schedule) {
  const auto n = static_cast<int32_t>(schedule->order.size());
  const auto m = static_cast<int32_t>(schedule->child.size());
  auto& offsets = schedule->out_offsets;
  offsets.assign(n + 1, 0);
  for (const int32_t child : schedule->child) ++offsets[child];
  to_positions(&offsets);
  PooledVector<int32_t> next(offsets.begin(), offsets.end() - 1);
  schedule->out_edges.resize(m);
  for (int32_t e = 0; e < m; ++e) schedule->out_edges[next[schedule->child[e]]++] = e;
}

void cut_tasks(const Graph& in, const Kinds& kinds, const Times& times, Schedule* schedule) {
  const int32_t n = in.num_vertices();
  const auto& edge_offsets = schedule->edge_offsets;
  std::vector<std::pair<int32_t, BatchTask>> by_kind;  // (time, task), ascending (kind, time)
  PooledVector<int32_t> at_time(times.count, 0);       // number of tasks, then the next one
  int32_t last = -1;                                   // number of the kind of the previous task
  for (int32_t r = 0; r < n;) {
    const int32_t v = schedule->order[r];
    const int32_t kind = kinds.of_vertex[v], time = times.of_vertex[v];
    const auto in_task = [&](int64_t other) {
      const int32_t u = schedule->order[other];
      return kinds.of_vertex[u] == kind && times.of_vertex[u] == time;
    };
    // Find the end of the contiguous rows of the task by exponential search.
    int64_t inside = r, step = 1;
    while (inside + step < n && in_task(inside + step)) inside += step, step *= 2;
    for (; step > 0; step /= 2) {
      if (inside + step < n && in_task(inside + step)) inside += step;
    }
    const auto end = static_cast<int32_t>(inside) + 1;
    const RowRange edges{edge_offsets[r], edge_offsets[end]};
    if (kind != last) {
      schedule->kinds.push_back({kinds.keys[kind], {r, r}, {edges.begin, edges.begin}});
      last = kind;
    }
    const auto number = static_cast<int32_t>(schedule->kinds.size()) - 1;
    const int32_t level = times.level == nullptr ? time : times.level[time];
    by_kind.push_back({time, {number, level, {r, end}, edges}});
    ++at_time[time];
    schedule->kinds.back().rows.end = end;
    schedule->kinds.back().edges.end = edges.end;
    r = end;
  }
  to_positions(&at_time);
  schedule->tasks.resize(by_kind.size());
  for (const auto& [time, task] : by_kind) schedule->tasks[at_time[time]++] = task;
}

// Count vertices and edges from the first of their structure, as their features are ordered.
void count_in_structures(const GraphBatch& batch, Schedule* schedule) {
  for (int32_t s = 1; s < batch.num_structures; ++s) {
    const int32_t vertex = batch.first_vertex(s), edge = batch.first_edge(s);
    for (int32_t r = vertex; r < batch.first_vertex(s + 1); ++r) schedule->order[r] -= vertex;
    for (int32_t e = edge; e < batch.first_edge(s + 1); ++e) schedule->edge_order[e] -= edge;
  }
}

// Index arrays that are derived on first use.
enum Derived : int64_t {
  kNthChild,
  kNthEdge,
  kParentIfNth,
  kNthParents,
  kOutParents,
  kNthLeaf,
  kGraphRoots,
  kGraphLeaves,
  kRowGraphs,
  kRootGraphs,
  kLeafGraphs,
  kLinked,
  kLinkedRows,
  kLinkReaders,
  kPairTarget,
  kPairOrder,
  kSourcePairs,
  kNumDerived
};

int64_t derived_key(int32_t k, Derived array) {
  if (k < 0) {
    throw std::invalid_argument("the number of a child or link must be at least 0, found " +
                                std::to_string(k));
  }
  return int64_t{k} * kNumDerived + array;
}

}  // namespace

PooledVector<uint32_t> presence_masks(int32_t count, const std::vector<const int32_t*>& features,
                                      const int32_t* rows, const uint32_t* leaf,
                                      const std::vector<int32_t>& child_numbers) {
  PooledVector<uint32_t> masks(count, 0);
  uint32_t bit = 0;
  for (const int32_t k : child_numbers) {
    for (int32_t r = 0; r < count; ++r) masks[r] |= (leaf[r] >> k & 1u) << bit;
    ++bit;
  }
  for (const int32_t* const values : features) {
    for (int32_t r = 0; r < count; ++r) {
      masks[r] |= static_cast<uint32_t>(values[rows ? rows[r] : r] >= 0) << bit;
    }
    ++bit;
  }
  return masks;
}

std::shared_ptr<const Schedule> make_schedule(std::shared_ptr<const GraphBatch> batch,
                                              const uint32_t* presence,
                                              const MergedFrom& merged_from, bool by_number,
                                              const SchedulingPolicy* policy) {
  auto schedule = std::make_shared<Schedule>();
  const Graph& in = *batch->all;
  const Kinds kinds = classify(*batch, presence);
  TaskOrder order;
  Times times{in.level.data(), in.num_levels, nullptr};
  if (policy != nullptr) {
    order = order_tasks(in, kinds, *policy);
    times = {order.task.data(), static_cast<int32_t>(order.step.size()), order.step.data()};
  }
  schedule->num_levels = policy == nullptr ? in.num_levels : order.step.back() + 1;
  sort_vertices(in, kinds, times, by_number, schedule.get());
  number_edges(in, schedule.get());
  invert_children(schedule.get());
  cut_tasks(in, kinds, times, schedule.get());
  count_in_structures(*batch, schedule.get());
  schedule->batch = std::move(batch);
  // Vertex ids of a graph are contiguous, so its rows are contiguous in `row`.
  schedule->graphs = merged_from.graphs ? merged_from.graphs : schedule->batch;
  schedule->graph_offsets = schedule->graphs->vertex_offsets;
  if (merged_from.graphs) {
    schedule->graph_rows.resize(schedule->graphs->num_vertices());
    for (size_t v = 0; v < schedule->graph_rows.size(); ++v) {
      schedule->graph_rows[v] = schedule->row[merged_from.distinct[v]];
    }
  } else {
    schedule->graph_rows = schedule->row;
  }
  if (!merged_from.graphs || schedule->graphs->num_structures > 1) {
    schedule->graph_of.resize(schedule->row.size());
    for (int32_t p = 0; p < schedule->num_parts(); ++p) {
      const int32_t g = p % schedule->num_graphs();
      for (int32_t v = schedule->graph_offsets[p]; v < schedule->graph_offsets[p + 1]; ++v) {
        schedule->graph_of[schedule->graph_rows[v]] = g;
      }
    }
  }
  return schedule;
}

std::vector<int32_t> Schedule::max_arities() const {
  std::vector<int32_t> most;
  for (const Kind& kind : kinds) {
    int32_t& arity = most.emplace_back(0);
    for (int32_t e = kind.edges.begin; e < kind.edges.end; ++e) {
      arity = std::max(arity, position_of(e) + 1);
    }
  }
  return most;
}

template <class F>
const int32_t* Schedule::derive(int64_t key, F&& fill) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto it = derived_.find(key);
  if (it == derived_.end()) {
    PooledVector<int32_t> array;
    fill(array);
    it = derived_.emplace(key, std::move(array)).first;  // when complete: fill may throw
  }
  return it->second.data();
}

template <class F>
void Schedule::fill_nth(int32_t k, PooledVector<int32_t>* array, F&& of_edge) const {
  array->assign(order.size(), -1);
  if (position.empty()) {
    for (size_t r = 0; r < order.size(); ++r) {
      const int32_t begin = edge_offsets[r], arity = edge_offsets[r + 1] - begin;
      if (k < arity) (*array)[r] = of_edge(begin + k);
    }
    return;
  }
  for (size_t e = 0; e < position.size(); ++e) {
    if (position[e] == k) (*array)[parent[e]] = of_edge(static_cast<int32_t>(e));
  }
}

const int32_t* Schedule::nth_child(int32_t k) const {
  return derive(derived_key(k, kNthChild),
                [&](auto& array) { fill_nth(k, &array, [&](int32_t e) { return child[e]; }); });
}

const int32_t* Schedule::nth_leaf(int32_t k) const {
  const int32_t* const children = nth_child(k);
  return derive(derived_key(k, kNthLeaf), [&](auto& array) {
    array.assign(children, children + order.size());
    for (int32_t& c : array) {
      if (c >= 0 && edge_offsets[c] < edge_offsets[c + 1]) c = -1;
    }
  });
}

const int32_t* Schedule::nth_edge(int32_t k) const {
  return derive(derived_key(k, kNthEdge),
                [&](auto& array) { fill_nth(k, &array, [](int32_t e) { return e; }); });
}

const int32_t* Schedule::parent_if_nth(int32_t k) const {
  return derive(derived_key(k, kParentIfNth), [&](auto& array) {
    array.resize(child.size());
    for (size_t e = 0; e < child.size(); ++e) {
      array[e] = position_of(static_cast<int32_t>(e)) == k ? parent[e] : -1;
    }
  });
}

const int32_t* Schedule::nth_parents(int32_t k) const {
  return derive(derived_key(k, kNthParents), [&](auto& array) {
    const auto n = static_cast<int32_t>(order.size());
    PooledVector<int32_t> rows;
    array.reserve(n + 1 + child.size());
    for (int32_t r = 0; r < n; ++r) {
      array.push_back(static_cast<int32_t>(rows.size()));
      for (int32_t i = out_offsets[r]; i < out_offsets[r + 1]; ++i) {
        if (position_of(out_edges[i]) == k) rows.push_back(parent[out_edges[i]]);
      }
    }
    array.push_back(static_cast<int32_t>(rows.size()));
    array.insert(array.end(), rows.begin(), rows.end());
  });
}

const int32_t* Schedule::out_parents() const {
  return derive(derived_key(0, kOutParents), [&](auto& array) {
    array.resize(out_edges.size());
    for (size_t i = 0; i < out_edges.size(); ++i) array[i] = parent[out_edges[i]];
  });
}

const int32_t* Schedule::roots_or_leaves(bool leaves) const {
  return derive(derived_key(0, leaves ? kGraphLeaves : kGraphRoots), [&](auto& array) {
    PooledVector<int32_t> rows;
    const Graph& all = *graphs->all;
    std::vector<char> has_edge(graph_rows.size(), 0);  // to a child, or to a parent
    for (int32_t v = 0; v < all.num_vertices(); ++v) {
      for (int32_t e = all.offsets[v]; e < all.offsets[v + 1]; ++e)
        has_edge[leaves ? v : all.children[e]] = 1;
    }
    for (int32_t g = 0; g < num_parts(); ++g) {
      array.push_back(static_cast<int32_t>(rows.size()));
      for (int32_t v = graph_offsets[g]; v < graph_offsets[g + 1]; ++v) {
        if (!has_edge[v]) rows.push_back(graph_rows[v]);
      }
    }
    array.push_back(static_cast<int32_t>(rows.size()));
    array.insert(array.end(), rows.begin(), rows.end());
  });
}

const int32_t* Schedule::graphs_of(const int32_t* offsets, const int32_t* rows, int64_t key) const {
  return derive(key, [&](auto& array) {
    PooledVector<int32_t> next(order.size() + 1, 0);
    for (int32_t i = 0; i < offsets[num_parts()]; ++i) ++next[rows[i]];
    to_positions(&next);
    array = next;
    array.resize(next.size() + offsets[num_parts()]);
    int32_t* const found = array.data() + next.size();
    for (int32_t p = 0; p < num_parts(); ++p) {
      const int32_t g = p % num_graphs();
      for (int32_t i = offsets[p]; i < offsets[p + 1]; ++i) found[next[rows[i]]++] = g;
    }
  });
}

const int32_t* Schedule::graph_roots() const { return roots_or_leaves(false); }
const int32_t* Schedule::graph_leaves() const { return roots_or_leaves(true); }

const int32_t* Schedule::row_graphs() const {
  return graphs_of(graph_offsets.data(), graph_rows.data(), derived_key(0, kRowGraphs));
}

const int32_t* Schedule::root_graphs() const {
  const int32_t* const roots = graph_roots();
  return graphs_of(roots, roots + num_parts() + 1, derived_key(0, kRootGraphs));
}

const int32_t* Schedule::leaf_graphs() const {
  const int32_t* const leaves = graph_leaves();
  return graphs_of(leaves, leaves + num_parts() + 1, derived_key(0, kLeafGraphs));
}

const int32_t* Schedule::linked(int32_t l) const {
  return derive(derived_key(l, kLinked), [&](auto& array) {
    const Link& link = batch->links.at(l);
    const RowRange targets = rows_of(link.target);
    array.assign(order.size(), -1);
    for (int32_t v = 0; v < targets.size(); ++v) {
      if (link.offsets[v] == link.offsets[v + 1]) continue;
      array[row[targets.begin + v]] = row[link.vertices[link.offsets[v]]];
    }
  });
}

const int32_t* Schedule::linked_rows(int32_t l) const {
  return derive(derived_key(l, kLinkedRows), [&](auto& array) {
    const Link& link = batch->links.at(l);
    const RowRange targets = rows_of(link.target);
    array.assign(order.size() + 1, 0);
    array.reserve(array.size() + link.vertices.size());
    for (int32_t r = targets.begin; r < targets.end; ++r) {
      const int32_t v = order[r];
      for (int32_t i = link.offsets[v]; i < link.offsets[v + 1]; ++i)
        array.push_back(row[link.vertices[i]]);
      array[r + 1] = static_cast<int32_t>(array.size() - order.size() - 1);
    }
    const auto all = static_cast<int32_t>(link.vertices.size());
    std::fill(array.begin() + targets.end, array.begin() + order.size() + 1, all);
  });
}

const int32_t* Schedule::link_readers(int32_t l) const {
  return derive(derived_key(l, kLinkReaders), [&](auto& array) {
    const Link& link = batch->links.at(l);
    const RowRange targets = rows_of(link.target);
    PooledVector<int32_t> next(order.size() + 1, 0);
    for (const int32_t v : link.vertices) ++next[row[v]];
    to_positions(&next);
    array = next;
    array.resize(next.size() + link.vertices.size());
    int32_t* const found = array.data() + next.size();
    for (int32_t r = targets.begin; r < targets.end; ++r) {
      const int32_t v = order[r];
      for (int32_t i = link.offsets[v]; i < link.offsets[v + 1]; ++i)
        found[next[row[link.vertices[i]]]++] = r;
    }
  });
}

const int32_t* Schedule::pair_target(int32_t l) const {
  const int32_t* const offsets = linked_rows(l);
  return derive(derived_key(l, kPairTarget), [&](auto& array) {
    array.resize(num_pairs(l));
    const RowRange targets = rows_of(batch->links.at(l).target);
    for (int32_t r = targets.begin; r < targets.end; ++r)
      std::fill(array.begin() + offsets[r], array.begin() + offsets[r + 1], r);
  });
}

const int32_t* Schedule::pair_order(int32_t l) const {
  return derive(derived_key(l, kPairOrder), [&](auto& array) {
    const Link& link = batch->links.at(l);
    const RowRange targets = rows_of(link.target);
    array.reserve(link.vertices.size());
    for (int32_t r = targets.begin; r < targets.end; ++r) {
      for (int32_t i = link.offsets[order[r]]; i < link.offsets[order[r] + 1]; ++i)
        array.push_back(i);
    }
  });
}

const int32_t* Schedule::source_pairs(int32_t l) const {
  const int32_t* const source = linked_rows(l) + order.size() + 1;
  return derive(derived_key(l, kSourcePairs), [&](auto& array) {
    PooledVector<int32_t> next(order.size() + 1, 0);
    for (int32_t i = 0; i < num_pairs(l); ++i) ++next[source[i]];
    to_positions(&next);
    array = next;
    array.resize(next.size() + num_pairs(l));
    int32_t* const found = array.data() + next.size();
    for (int32_t i = 0; i < num_pairs(l); ++i) found[next[source[i]]++] = i;
  });
}

PooledVector<int32_t> Schedule::permute_vertices(const int32_t* values) const {
  PooledVector<int32_t> out(order.size());
  for (size_t r = 0; r < out.size(); ++r) out[r] = values[order[r]];
  return out;
}

PooledVector<int32_t> Schedule::permute_edges(const int32_t* values) const {
  PooledVector<int32_t> out(edge_order.size());
  for (size_t e = 0; e < out.size(); ++e) out[e] = values[edge_order[e]];
  return out;
}

}  // namespace cavs
