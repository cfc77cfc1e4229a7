#include "schedule/schedule.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

namespace cavs {
namespace {

// Numbers the kinds of a batch by first occurrence, then sorts them: with children first, then by
// ascending key.
class KindTable {
 public:
  int32_t id(uint32_t presence, bool has_children) {
    const uint64_t key = uint64_t{presence} * 2 + has_children;
    Recent& recent = recent_[has_children];  // real batches have one or two kinds of each sort
    if (recent.key != key) {
      const auto [it, is_new] = ids_.try_emplace(key, static_cast<int32_t>(keys_.size()));
      if (is_new) keys_.push_back(key);
      recent = {key, it->second};
    }
    return recent.id;
  }

  const std::vector<uint64_t>& keys() const { return keys_; }

  // Sorts the keys and returns the new number of each old one.
  Recycled<int32_t> sort() {
    Recycled<int32_t> by_key(keys_.size()), rank(keys_.size());
    std::iota(by_key.begin(), by_key.end(), 0);
    const auto before = [](uint64_t a, uint64_t b) { return a % 2 != b % 2 ? a % 2 == 1 : a < b; };
    std::sort(by_key.begin(), by_key.end(),
              [&](int32_t a, int32_t b) { return before(keys_[a], keys_[b]); });
    for (size_t i = 0; i < by_key.size(); ++i) rank[by_key[i]] = static_cast<int32_t>(i);
    std::sort(keys_.begin(), keys_.end(), before);
    return rank;
  }

 private:
  struct Recent {
    uint64_t key = ~uint64_t{0};
    int32_t id = -1;
  };
  Recent recent_[2];
  std::unordered_map<uint64_t, int32_t> ids_;
  std::vector<uint64_t> keys_;
};

// Counts to first positions: exclusive prefix sums in place.
void to_positions(Recycled<int32_t>* counts) {
  int32_t sum = 0;
  for (int32_t& count : *counts) sum += std::exchange(count, sum);
}

// What the sort of the vertices needs, by vertex id.
struct Vertices {
  Recycled<int32_t> kind, level;
  std::vector<uint64_t> keys;  // ascending, of the kinds
};

Vertices classify(const GraphBatch& batch, const uint32_t* presence) {
  const int32_t n = batch.num_vertices();
  Vertices vertices{Recycled<int32_t>(n), Recycled<int32_t>(n), {}};
  KindTable table;
  for (int32_t g = 0; g < batch.num_graphs(); ++g) {
    const Graph& graph = *batch.graphs[g];
    const int32_t base = batch.vertex_offsets[g];
    const int32_t size = graph.num_vertices();
    std::copy(graph.level.begin(), graph.level.end(), vertices.level.begin() + base);
    for (int32_t v = 0; v < size; ++v) {
      vertices.kind[base + v] =
          table.id(presence ? presence[base + v] : 0, graph.offsets[v + 1] > graph.offsets[v]);
    }
  }
  const Recycled<int32_t> rank = table.sort();
  for (int32_t& kind : vertices.kind) kind = rank[kind];
  vertices.keys = table.keys();
  return vertices;
}

// A stable counting sort of `order`, by keys in [0, keys).
template <class Key>
Recycled<int32_t> sorted(const Recycled<int32_t>& order, size_t keys, Key key) {
  Recycled<int32_t> next(keys, 0), result(order.size());
  for (size_t v = 0; v < order.size(); ++v) ++next[key(static_cast<int32_t>(v))];
  to_positions(&next);
  for (const int32_t v : order) result[next[key(v)]++] = v;
  return result;
}

// Fills order and row: by kind, and inside a kind by level. At once, unless kinds times levels are
// so many that the work would not be linear.
void sort_vertices(const Vertices& vertices, Schedule* schedule) {
  const auto& [kind, level, keys] = vertices;
  const size_t n = kind.size(), levels = schedule->num_levels;
  Recycled<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  if (keys.size() * levels <= 2 * n) {
    order =
        sorted(order, keys.size() * levels, [&](int32_t v) { return kind[v] * levels + level[v]; });
  } else {
    order = sorted(order, levels, [&](int32_t v) { return level[v]; });
    order = sorted(order, keys.size(), [&](int32_t v) { return kind[v]; });
  }
  schedule->row.resize(n);
  for (size_t r = 0; r < n; ++r) schedule->row[order[r]] = static_cast<int32_t>(r);
  schedule->order = std::move(order);
}

void place_edges(Schedule* schedule) {
  const GraphBatch& batch = *schedule->batch;
  const int32_t n = batch.num_vertices(), m = batch.num_edges();
  schedule->edge_offsets.assign(n + 1, 0);
  int32_t* counts = schedule->edge_offsets.data() + 1;
  for (int32_t g = 0; g < batch.num_graphs(); ++g) {
    const Graph& graph = *batch.graphs[g];
    const int32_t* row = schedule->row.data() + batch.vertex_offsets[g];
    for (int32_t v = 0; v < graph.num_vertices(); ++v) {
      const int32_t arity = graph.offsets[v + 1] - graph.offsets[v];
      counts[row[v]] = arity;
      schedule->max_arity = std::max(schedule->max_arity, arity);
    }
  }
  std::partial_sum(schedule->edge_offsets.begin(), schedule->edge_offsets.end(),
                   schedule->edge_offsets.begin());

  schedule->edge_order.resize(m);
  schedule->child.resize(m);
  schedule->parent.resize(m);
  for (int32_t g = 0; g < batch.num_graphs(); ++g) {
    const Graph& graph = *batch.graphs[g];
    const int32_t* row = schedule->row.data() + batch.vertex_offsets[g];
    const int32_t edge_base = batch.edge_offsets[g];
    for (int32_t v = 0; v < graph.num_vertices(); ++v) {
      int32_t edge_row = schedule->edge_offsets[row[v]];
      for (int32_t e = graph.offsets[v]; e < graph.offsets[v + 1]; ++e, ++edge_row) {
        schedule->edge_order[edge_row] = edge_base + e;
        schedule->child[edge_row] = row[graph.children[e]];
        schedule->parent[edge_row] = row[v];
      }
    }
  }
}

// The inverse of `child`: which edge rows read each row.
void invert_children(Schedule* schedule) {
  const auto n = static_cast<int32_t>(schedule->order.size());
  const auto m = static_cast<int32_t>(schedule->child.size());
  auto& offsets = schedule->out_offsets;
  offsets.assign(n + 1, 0);
  for (const int32_t child : schedule->child) ++offsets[child];
  to_positions(&offsets);
  Recycled<int32_t> next(offsets.begin(), offsets.end() - 1);
  schedule->out_edges.resize(m);
  for (int32_t e = 0; e < m; ++e) schedule->out_edges[next[schedule->child[e]]++] = e;
}

void cut_tasks(const Vertices& vertices, Schedule* schedule) {
  const auto n = static_cast<int32_t>(schedule->order.size());
  const auto& edge_offsets = schedule->edge_offsets;
  std::vector<BatchTask> by_kind;  // ascending (kind, level), as the rows are
  Recycled<int32_t> level_next(schedule->num_levels, 0);
  for (int32_t r = 0; r < n;) {
    const int32_t v = schedule->order[r];
    const int32_t kind = vertices.kind[v], level = vertices.level[v];
    int32_t end = r + 1;
    while (end < n && vertices.kind[schedule->order[end]] == kind &&
           vertices.level[schedule->order[end]] == level) {
      ++end;
    }
    const RowRange edges{edge_offsets[r], edge_offsets[end]};
    by_kind.push_back({kind, level, {r, end}, edges});
    ++level_next[level];
    if (static_cast<int32_t>(schedule->kinds.size()) == kind) {
      schedule->kinds.push_back({vertices.keys[kind], {r, r}, {edges.begin, edges.begin}});
    }
    schedule->kinds.back().rows.end = end;
    schedule->kinds.back().edges.end = edges.end;
    r = end;
  }
  to_positions(&level_next);
  schedule->tasks.resize(by_kind.size());
  for (const BatchTask& task : by_kind) schedule->tasks[level_next[task.level]++] = task;
}

enum Derived : int64_t {
  kNthChild,
  kNthEdge,
  kParentIfNth,
  kNthParents,
  kNthLeaf,
  kGraphRoots,
  kGraphLeaves,
  kRowGraphs,
  kRootGraphs,
  kLeafGraphs,
  kNumDerived
};

int64_t derived_key(int32_t k, Derived what) {
  if (k < 0) {
    throw std::invalid_argument("the number of a child must be at least 0, found " +
                                std::to_string(k));
  }
  return int64_t{k} * kNumDerived + what;
}

}  // namespace

Recycled<uint32_t> presence_masks(int32_t count, const std::vector<const int32_t*>& features,
                                  const int32_t* rows, const uint32_t* leaf,
                                  const std::vector<int32_t>& child_numbers) {
  Recycled<uint32_t> masks(count);
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
                                              const MergedFrom& merged_from) {
  auto schedule = std::make_shared<Schedule>();
  for (const auto& graph : batch->graphs) {
    schedule->num_levels = std::max(schedule->num_levels, graph->num_levels);
  }
  const Vertices vertices = classify(*batch, presence);
  schedule->batch = std::move(batch);
  sort_vertices(vertices, schedule.get());
  place_edges(schedule.get());
  invert_children(schedule.get());
  cut_tasks(vertices, schedule.get());
  // A graph's vertices are contiguous ids, so its rows stand in `row` one after the other.
  schedule->graphs = merged_from.graphs ? merged_from.graphs : schedule->batch;
  schedule->graph_offsets = schedule->graphs->vertex_offsets;
  if (merged_from.graphs) {
    schedule->graph_rows.resize(schedule->graphs->num_vertices());
    for (size_t v = 0; v < schedule->graph_rows.size(); ++v) {
      schedule->graph_rows[v] = schedule->row[merged_from.distinct[v]];
    }
  } else {
    schedule->graph_rows = schedule->row;
    schedule->graph_of.resize(schedule->row.size());
    for (int32_t g = 0; g < schedule->num_graphs(); ++g) {
      for (int32_t v = schedule->graph_offsets[g]; v < schedule->graph_offsets[g + 1]; ++v) {
        schedule->graph_of[schedule->row[v]] = g;
      }
    }
  }
  return schedule;
}

const int32_t* Schedule::nth_child(int32_t k) const {
  const int64_t key = derived_key(k, kNthChild);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto [it, is_new] = derived_.try_emplace(key);
  if (is_new) {
    it->second.resize(order.size());
    for (size_t r = 0; r < order.size(); ++r) {
      const int32_t begin = edge_offsets[r], arity = edge_offsets[r + 1] - begin;
      it->second[r] = k < arity ? child[begin + k] : -1;
    }
  }
  return it->second.data();
}

const int32_t* Schedule::nth_leaf(int32_t k) const {
  const int64_t key = derived_key(k, kNthLeaf);
  const int32_t* const children = nth_child(k);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto [it, is_new] = derived_.try_emplace(key);
  if (is_new) {
    it->second.assign(children, children + order.size());
    for (int32_t& c : it->second) {
      if (c >= 0 && edge_offsets[c] < edge_offsets[c + 1]) c = -1;
    }
  }
  return it->second.data();
}

const int32_t* Schedule::nth_edge(int32_t k) const {
  const int64_t key = derived_key(k, kNthEdge);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto [it, is_new] = derived_.try_emplace(key);
  if (is_new) {
    it->second.resize(order.size());
    for (size_t r = 0; r < order.size(); ++r) {
      const int32_t begin = edge_offsets[r], arity = edge_offsets[r + 1] - begin;
      it->second[r] = k < arity ? begin + k : -1;
    }
  }
  return it->second.data();
}

const int32_t* Schedule::parent_if_nth(int32_t k) const {
  const int64_t key = derived_key(k, kParentIfNth);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto [it, is_new] = derived_.try_emplace(key);
  if (is_new) {
    it->second.resize(child.size());
    for (size_t e = 0; e < child.size(); ++e) {
      const int32_t r = parent[e];
      it->second[e] = static_cast<int32_t>(e) - edge_offsets[r] == k ? r : -1;
    }
  }
  return it->second.data();
}

const int32_t* Schedule::nth_parents(int32_t k) const {
  const int64_t key = derived_key(k, kNthParents);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto [it, is_new] = derived_.try_emplace(key);
  if (is_new) {
    const auto n = static_cast<int32_t>(order.size());
    Recycled<int32_t> rows;
    it->second.reserve(n + 1 + child.size());
    for (int32_t r = 0; r < n; ++r) {
      it->second.push_back(static_cast<int32_t>(rows.size()));
      for (int32_t i = out_offsets[r]; i < out_offsets[r + 1]; ++i) {
        const int32_t p = parent[out_edges[i]];
        if (out_edges[i] - edge_offsets[p] == k) rows.push_back(p);
      }
    }
    it->second.push_back(static_cast<int32_t>(rows.size()));
    it->second.insert(it->second.end(), rows.begin(), rows.end());
  }
  return it->second.data();
}

const int32_t* Schedule::graph_ends(bool leaves) const {
  const int64_t key = derived_key(0, leaves ? kGraphLeaves : kGraphRoots);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto [it, is_new] = derived_.try_emplace(key);
  if (is_new) {
    Recycled<int32_t> rows;
    std::vector<char> inside;  // no end
    for (int32_t g = 0; g < num_graphs(); ++g) {
      const Graph& graph = *graphs->graphs[g];
      inside.assign(graph.num_vertices(), 0);
      for (int32_t v = 0; v < graph.num_vertices(); ++v) {
        for (int32_t e = graph.offsets[v]; e < graph.offsets[v + 1]; ++e) {
          inside[leaves ? v : graph.children[e]] = 1;
        }
      }
      it->second.push_back(static_cast<int32_t>(rows.size()));
      for (int32_t v = 0; v < graph.num_vertices(); ++v) {
        if (!inside[v]) rows.push_back(graph_rows[graph_offsets[g] + v]);
      }
    }
    it->second.push_back(static_cast<int32_t>(rows.size()));
    it->second.insert(it->second.end(), rows.begin(), rows.end());
  }
  return it->second.data();
}

// The inverse of segments of rows, a graph each.
const int32_t* Schedule::graphs_of(const int32_t* offsets, const int32_t* rows, int64_t key) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto [it, is_new] = derived_.try_emplace(key);
  if (is_new) {
    Recycled<int32_t> next(order.size() + 1);
    for (int32_t i = 0; i < offsets[num_graphs()]; ++i) ++next[rows[i]];
    to_positions(&next);
    it->second = next;
    it->second.resize(next.size() + offsets[num_graphs()]);
    int32_t* const found = it->second.data() + next.size();
    for (int32_t g = 0; g < num_graphs(); ++g) {
      for (int32_t i = offsets[g]; i < offsets[g + 1]; ++i) found[next[rows[i]]++] = g;
    }
  }
  return it->second.data();
}

const int32_t* Schedule::graph_roots() const { return graph_ends(false); }
const int32_t* Schedule::graph_leaves() const { return graph_ends(true); }

const int32_t* Schedule::row_graphs() const {
  return graphs_of(graph_offsets.data(), graph_rows.data(), derived_key(0, kRowGraphs));
}

const int32_t* Schedule::root_graphs() const {
  const int32_t* const roots = graph_roots();
  return graphs_of(roots, roots + num_graphs() + 1, derived_key(0, kRootGraphs));
}

const int32_t* Schedule::leaf_graphs() const {
  const int32_t* const leaves = graph_leaves();
  return graphs_of(leaves, leaves + num_graphs() + 1, derived_key(0, kLeafGraphs));
}

Recycled<int32_t> Schedule::permute_vertices(const int32_t* values) const {
  Recycled<int32_t> out(order.size());
  for (size_t r = 0; r < out.size(); ++r) out[r] = values[order[r]];
  return out;
}

Recycled<int32_t> Schedule::permute_edges(const int32_t* values) const {
  Recycled<int32_t> out(edge_order.size());
  for (size_t e = 0; e < out.size(); ++e) out[e] = values[edge_order[e]];
  return out;
}

}  // namespace cavs
