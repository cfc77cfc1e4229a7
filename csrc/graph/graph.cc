#include "graph/graph.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace cavs {
namespace {

void check_offsets(const Graph& graph) {
  const auto& offsets = graph.offsets;
  if (offsets.empty()) throw GraphError("offsets must start at 0, found none", -1);
  if (offsets.front() != 0) {
    throw GraphError("offsets must start at 0, found " + std::to_string(offsets.front()), 0);
  }
  for (size_t v = 0; v + 1 < offsets.size(); ++v) {
    if (offsets[v + 1] < offsets[v]) {
      throw GraphError("offsets must not decrease: vertex " + std::to_string(v) + " has " +
                           std::to_string(offsets[v]) + " and the next " +
                           std::to_string(offsets[v + 1]),
                       static_cast<int64_t>(v));
    }
  }
  if (static_cast<size_t>(offsets.back()) != graph.children.size()) {
    throw GraphError("offsets end at " + std::to_string(offsets.back()) + " but there are " +
                         std::to_string(graph.children.size()) + " children",
                     -1);
  }
}

// Remove the entries of -1, after which children keep their positions.
void remove_absent_children(Graph* graph) {
  auto &offsets = graph->offsets, &children = graph->children;
  if (std::find(children.begin(), children.end(), -1) == children.end()) return;
  PooledVector<int32_t> position(children.size());
  bool dense = true;
  int32_t begin = 0, edge = 0;
  for (int32_t v = 0; v < graph->num_vertices(); ++v) {
    const int32_t end = offsets[v + 1];
    for (int32_t i = begin; i < end; ++i) {
      if (children[i] == -1) continue;
      position[edge] = i - begin;
      dense &= position[edge] == edge - offsets[v];
      children[edge++] = children[i];
    }
    begin = end;
    offsets[v + 1] = edge;
  }
  children.resize(edge);
  position.resize(edge);
  if (!dense) graph->position = std::move(position);
}

// Numbering of the vertices. Most builders emit children first (or parents first); then levels need
// one sweep and no queue.
enum class Numbering { kChildrenFirst, kParentsFirst, kMixed };

Numbering check_children(const Graph& graph) {
  const int32_t n = graph.num_vertices();
  bool children_first = true, parents_first = true;
  for (int32_t v = 0; v < n; ++v) {
    for (int32_t e = graph.offsets[v]; e < graph.offsets[v + 1]; ++e) {
      const int32_t child = graph.children[e];
      if (child < 0 || child >= n) {
        throw GraphError("vertex " + std::to_string(v) + " has child " + std::to_string(child) +
                             ", but vertices are 0.." + std::to_string(n - 1),
                         v);
      }
      children_first &= child < v;
      parents_first &= child > v;
    }
  }
  if (children_first) return Numbering::kChildrenFirst;
  return parents_first ? Numbering::kParentsFirst : Numbering::kMixed;
}

int32_t level_of(const Graph& graph, int32_t v) {
  int32_t level = 0;
  for (int32_t e = graph.offsets[v]; e < graph.offsets[v + 1]; ++e) {
    level = std::max(level, graph.level[graph.children[e]] + 1);
  }
  return level;
}

// CSR of the reversed edges: offsets by child, parents ascending (by edge).
std::pair<PooledVector<int32_t>, PooledVector<int32_t>> parents_of(const Graph& graph) {
  const int32_t n = graph.num_vertices();
  PooledVector<int32_t> offsets(n + 1, 0);
  for (const int32_t child : graph.children) ++offsets[child + 1];
  for (int32_t v = 0; v < n; ++v) offsets[v + 1] += offsets[v];
  PooledVector<int32_t> parents(graph.children.size());
  PooledVector<int32_t> next(offsets.begin(), offsets.end() - 1);
  for (int32_t v = 0; v < n; ++v) {
    for (int32_t e = graph.offsets[v]; e < graph.offsets[v + 1]; ++e) {
      parents[next[graph.children[e]]++] = v;
    }
  }
  return {std::move(offsets), std::move(parents)};
}

// Throw the error of a cycle. Each vertex that is still waiting has a child that waits too, so
// walking down from any of them ends in a cycle.
[[noreturn]] void throw_cycle(const Graph& graph, const PooledVector<int32_t>& waiting) {
  int32_t v = 0;
  while (waiting[v] == 0) ++v;
  const auto waiting_child = [&](int32_t u) {
    int32_t e = graph.offsets[u];
    while (waiting[graph.children[e]] == 0) ++e;
    return graph.children[e];
  };
  for (int32_t i = 0; i < graph.num_vertices(); ++i) v = waiting_child(v);
  constexpr int kShown = 8;
  std::string path = std::to_string(v);
  int shown = 1;
  for (int32_t u = waiting_child(v);; u = waiting_child(u), ++shown) {
    path += " <- " + (shown < kShown ? std::to_string(u) : std::string("..."));
    if (u == v || shown == kShown) break;
  }
  throw GraphError("a cycle through vertex " + std::to_string(v) + ": " + path, v);
}

bool is_chains(const Graph& graph) {
  if (!graph.position.empty()) return false;
  std::vector<bool> has_parent(graph.num_vertices(), false);
  for (int32_t v = 0; v < graph.num_vertices(); ++v) {
    if (graph.offsets[v + 1] - graph.offsets[v] > 1) return false;
  }
  for (const int32_t child : graph.children) {
    if (has_parent[child]) return false;
    has_parent[child] = true;
  }
  return true;
}

void levels_by_kahn(Graph* graph) {
  const int32_t n = graph->num_vertices();
  const auto [offsets, parents] = parents_of(*graph);
  PooledVector<int32_t> waiting(n);  // children that are not processed yet
  PooledVector<int32_t> queue;
  queue.reserve(n);
  for (int32_t v = 0; v < n; ++v) {
    waiting[v] = graph->offsets[v + 1] - graph->offsets[v];
    if (waiting[v] == 0) queue.push_back(v);
  }
  for (size_t i = 0; i < queue.size(); ++i) {
    const int32_t v = queue[i];
    for (int32_t j = offsets[v]; j < offsets[v + 1]; ++j) {
      const int32_t parent = parents[j];
      graph->level[parent] = std::max(graph->level[parent], graph->level[v] + 1);
      if (--waiting[parent] == 0) queue.push_back(parent);
    }
  }
  if (static_cast<int32_t>(queue.size()) != n) throw_cycle(*graph, waiting);
}

}  // namespace

void number_children(Graph* graph) {
  constexpr uint8_t kNone = kNumbers;
  graph->number.assign(graph->num_vertices(), kNone);
  const int32_t* const children = graph->children.data();
  for (int32_t v = 0; v < graph->num_vertices(); ++v) {
    const int32_t begin = graph->offsets[v];
    for (int32_t e = begin; e < graph->offsets[v + 1]; ++e) {
      const int32_t k = graph->position_of(e, begin);
      uint8_t& number = graph->number[children[e]];
      number = std::min(number, static_cast<uint8_t>(std::min(k, kNumbers - 1)));
    }
  }
  for (uint8_t& number : graph->number) {
    number = number == kNone ? 0 : number;
    graph->num_numbers = std::max(graph->num_numbers, number + 1);
  }
}

std::shared_ptr<const Graph> make_graph(PooledVector<int32_t> offsets,
                                        PooledVector<int32_t> children) {
  auto graph = std::make_shared<Graph>();
  graph->offsets = std::move(offsets);
  graph->children = std::move(children);
  check_offsets(*graph);
  remove_absent_children(graph.get());
  const Numbering numbering = check_children(*graph);
  const int32_t n = graph->num_vertices();
  graph->children_first = numbering == Numbering::kChildrenFirst;
  graph->level.assign(n, 0);
  switch (numbering) {
    case Numbering::kChildrenFirst:
      for (int32_t v = 0; v < n; ++v) graph->level[v] = level_of(*graph, v);
      break;
    case Numbering::kParentsFirst:
      for (int32_t v = n - 1; v >= 0; --v) graph->level[v] = level_of(*graph, v);
      break;
    case Numbering::kMixed:
      levels_by_kahn(graph.get());
      break;
  }
  graph->chains = is_chains(*graph);
  number_children(graph.get());
  for (const int32_t level : graph->level)
    graph->num_levels = std::max(graph->num_levels, level + 1);
  return graph;
}

std::pair<PooledVector<int32_t>, PooledVector<int32_t>> child_lists(const Graph& graph) {
  if (graph.position.empty()) return {graph.offsets, graph.children};
  const int32_t n = graph.num_vertices();
  PooledVector<int32_t> offsets(n + 1, 0);
  for (int32_t v = 0; v < n; ++v) {
    const int32_t end = graph.offsets[v + 1];
    offsets[v + 1] = offsets[v] + (graph.offsets[v] < end ? graph.position[end - 1] + 1 : 0);
  }
  PooledVector<int32_t> children(offsets[n], -1);
  for (int32_t v = 0; v < n; ++v) {
    for (int32_t e = graph.offsets[v]; e < graph.offsets[v + 1]; ++e) {
      children[offsets[v] + graph.position[e]] = graph.children[e];
    }
  }
  return {std::move(offsets), std::move(children)};
}

std::shared_ptr<const Graph> reverse_graph(const Graph& graph) {
  auto [offsets, parents] = parents_of(graph);
  return make_graph(std::move(offsets), std::move(parents));
}

GraphView view_of(const Graph& graph) {
  return {graph.num_vertices(),
          graph.num_edges(),
          graph.num_levels,
          graph.num_numbers,
          graph.chains,
          graph.children_first,
          graph.offsets.data(),
          graph.children.data(),
          graph.level.data(),
          graph.number.data(),
          graph.position.empty() ? nullptr : graph.position.data()};
}

std::shared_ptr<const GraphBatch> collate(const std::vector<GraphView>& graphs) {
  if (graphs.empty()) throw GraphError("a batch needs at least one graph, found none", -1);
  auto batch = std::make_shared<GraphBatch>();
  batch->vertex_offsets.reserve(graphs.size() + 1);
  batch->edge_offsets.reserve(graphs.size() + 1);
  int64_t vertices = 0, edges = 0;
  const auto count = [&] {
    batch->vertex_offsets.push_back(static_cast<int32_t>(vertices));
    batch->edge_offsets.push_back(static_cast<int32_t>(edges));
  };
  count();
  for (const GraphView& graph : graphs) {
    vertices += graph.num_vertices;
    edges += graph.num_edges;
    if (std::max(vertices, edges) > std::numeric_limits<int32_t>::max()) {
      throw GraphError(
          "a batch holds at most 2147483647 vertices and as many edges, found more; "
          "use a smaller batch",
          -1);
    }
    count();
  }
  const auto whole = std::make_shared<Graph>();
  Graph& all = *whole;
  all.offsets.resize(vertices + 1);
  all.children.resize(edges);
  all.level.resize(vertices);
  all.number.resize(vertices);
  all.chains = all.children_first = true;
  const bool spaced = std::any_of(graphs.begin(), graphs.end(),
                                  [](const GraphView& graph) { return graph.position != nullptr; });
  if (spaced) all.position.resize(edges);
  for (size_t g = 0; g < graphs.size(); ++g) {
    const GraphView& graph = graphs[g];
    const int32_t vertex = batch->vertex_offsets[g], edge = batch->edge_offsets[g];
    int32_t *const offsets = all.offsets.data() + vertex, *const below = all.children.data() + edge;
    for (int32_t v = 0; v < graph.num_vertices; ++v) offsets[v] = edge + graph.offsets[v];
    for (int32_t e = 0; e < graph.num_edges; ++e) below[e] = vertex + graph.children[e];
    for (int32_t v = 0; spaced && v < graph.num_vertices; ++v) {
      for (int32_t e = graph.offsets[v]; e < graph.offsets[v + 1]; ++e) {
        all.position[edge + e] = graph.position ? graph.position[e] : e - graph.offsets[v];
      }
    }
    std::copy_n(graph.level, graph.num_vertices, all.level.data() + vertex);
    std::copy_n(graph.number, graph.num_vertices, all.number.data() + vertex);
    all.num_levels = std::max(all.num_levels, graph.num_levels);
    all.num_numbers = std::max(all.num_numbers, graph.num_numbers);
    all.chains &= graph.chains;
    all.children_first &= graph.children_first;
  }
  all.offsets[vertices] = static_cast<int32_t>(edges);
  batch->all = whole;
  return batch;
}

std::shared_ptr<const GraphBatch> batch_of(std::shared_ptr<const Graph> graph) {
  auto batch = std::make_shared<GraphBatch>();
  batch->vertex_offsets = {0, graph->num_vertices()};
  batch->edge_offsets = {0, graph->num_edges()};
  batch->all = std::move(graph);
  return batch;
}

std::shared_ptr<GraphBatch> stack_structures(
    const std::vector<std::shared_ptr<const GraphBatch>>& structures) {
  std::vector<GraphView> views;
  for (const auto& structure : structures) views.push_back(view_of(*structure->all));
  const auto coarse = collate(views);
  auto batch = std::make_shared<GraphBatch>();
  batch->all = coarse->all;
  batch->num_structures = static_cast<int32_t>(structures.size());
  batch->vertex_offsets = {0};
  batch->edge_offsets = {0};
  for (size_t s = 0; s < structures.size(); ++s) {
    for (int32_t g = 1; g <= structures[s]->num_parts(); ++g) {
      const GraphBatch& own = *structures[s];
      batch->vertex_offsets.push_back(coarse->vertex_offsets[s] + own.vertex_offsets[g]);
      batch->edge_offsets.push_back(coarse->edge_offsets[s] + own.edge_offsets[g]);
    }
  }
  return batch;
}

Link join_links(const GraphBatch& batch, int32_t target, int32_t source,
                const std::vector<LinkPart>& parts) {
  const int32_t samples = batch.num_graphs();
  int64_t pairs = 0;  // with those that a target does not have where it reads one vertex at most
  for (int32_t i = 0; i < samples; ++i) {
    const int32_t* const readers = batch.vertex_offsets.data() + target * samples + i;
    const int32_t* const read = batch.vertex_offsets.data() + source * samples + i;
    const int32_t count = readers[1] - readers[0];
    if (parts[i].vertices == nullptr) {
      pairs += int64_t{count} * (read[1] - read[0]);
    } else {
      pairs += parts[i].offsets ? parts[i].offsets[count] : count;
    }
  }
  if (pairs > std::numeric_limits<int32_t>::max()) {
    throw GraphError("a link of a batch holds at most 2147483647 vertices to read, found " +
                         std::to_string(pairs) + "; use a smaller batch",
                     -1);
  }
  Link link{target, source, {}, {}};
  link.offsets.reserve(batch.first_vertex(target + 1) - batch.first_vertex(target) + 1);
  link.offsets.push_back(0);
  link.vertices.reserve(pairs);
  for (int32_t i = 0; i < samples; ++i) {
    const auto [offsets, vertices] = parts[i];
    const int32_t* const readers = batch.vertex_offsets.data() + target * samples + i;
    const int32_t* const read = batch.vertex_offsets.data() + source * samples + i;
    const auto add = [&](int32_t v) {
      if (v < 0 || v >= read[1] - read[0]) {
        throw GraphError("a link of sample " + std::to_string(i) + " leads to vertex " +
                             std::to_string(v) + " of " + std::to_string(read[1] - read[0]),
                         v);
      }
      link.vertices.push_back(read[0] + v);
    };
    for (int32_t v = 0; v < readers[1] - readers[0]; ++v) {
      if (vertices == nullptr) {
        for (int32_t u = read[0]; u < read[1]; ++u) link.vertices.push_back(u);
      } else if (offsets == nullptr) {
        if (vertices[v] != -1) add(vertices[v]);
      } else {
        for (int32_t j = offsets[v]; j < offsets[v + 1]; ++j) add(vertices[j]);
      }
      link.offsets.push_back(static_cast<int32_t>(link.vertices.size()));
    }
  }
  return link;
}

std::shared_ptr<const Graph> graph_of(const GraphBatch& batch, int32_t g) {
  const auto part = [](const PooledVector<int32_t>& of, int32_t begin, int32_t end, int32_t less) {
    PooledVector<int32_t> found(of.begin() + begin, of.begin() + end);
    for (int32_t& x : found) x -= less;
    return found;
  };
  const int32_t vertex = batch.vertex_offsets[g], edge = batch.edge_offsets[g];
  Graph graph;
  graph.offsets = part(batch.all->offsets, vertex, batch.vertex_offsets[g + 1] + 1, edge);
  graph.children = part(batch.all->children, edge, batch.edge_offsets[g + 1], vertex);
  if (!batch.all->position.empty())
    graph.position = part(batch.all->position, edge, batch.edge_offsets[g + 1], 0);
  auto [offsets, children] = child_lists(graph);
  return make_graph(std::move(offsets), std::move(children));
}

}  // namespace cavs
