// Input graphs and their collation. A vertex's children are its predecessors: they run first.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/pooled_vector.h"

namespace cavs {

// The structure of a sample or a batch in CSR form: vertex v gathers from children[offsets[v] ..
// offsets[v + 1]), in order. Immutable once built.
struct Graph {
  PooledVector<int32_t> offsets;   // num_vertices + 1
  PooledVector<int32_t> children;  // num_edges
  PooledVector<int32_t> level;     // 1 + max level of the children, 0 without children
  PooledVector<uint8_t> number;    // its first position as a child, see number_children
  int32_t num_levels = 0;
  int32_t num_numbers = 1;
  bool chains = false;          // no vertex has more than one child, or more than one parent
  bool children_first = false;  // every child has a smaller number than its parents

  int32_t num_vertices() const { return static_cast<int32_t>(offsets.size()) - 1; }
  int32_t num_edges() const { return static_cast<int32_t>(children.size()); }
};

// Error of an invalid graph. vertex is -1 unless a single vertex is at fault.
struct GraphError : std::runtime_error {
  GraphError(const std::string& what, int64_t vertex_)
      : std::runtime_error(what), vertex(vertex_) {}
  int64_t vertex;
};

// Check offsets and children (dangling indices, cycles) and compute levels by one Kahn pass, linear
// in vertices and edges, without recursion. Throws GraphError.
std::shared_ptr<const Graph> make_graph(PooledVector<int32_t> offsets,
                                        PooledVector<int32_t> children);
// Set `number` of each vertex to its least position among the children of another, at most kNumbers
// - 1; 0 if it is no child. num_numbers: one more than the largest.
constexpr int32_t kNumbers = 8;
void number_children(Graph* graph);
// Reverse every edge: children become parents. Order: by the original parent, then position.
std::shared_ptr<const Graph> reverse_graph(const Graph& graph);

// The data of a graph that a batch reads, for any storage.
struct GraphView {
  int32_t num_vertices, num_edges, num_levels, num_numbers;
  bool chains, children_first;
  const int32_t *offsets, *children, *level;
  const uint8_t* number;
};
GraphView view_of(const Graph& graph);

// Several graphs as one: vertex ids are shifted by the sizes of the graphs before.
struct GraphBatch {
  std::shared_ptr<const Graph> all;
  PooledVector<int32_t> vertex_offsets;  // num_graphs + 1
  PooledVector<int32_t> edge_offsets;    // num_graphs + 1
  int32_t num_graphs() const { return static_cast<int32_t>(vertex_offsets.size()) - 1; }
  int32_t num_vertices() const { return all->num_vertices(); }
  int32_t num_edges() const { return all->num_edges(); }
};

std::shared_ptr<const GraphBatch> collate(const std::vector<GraphView>& graphs);
std::shared_ptr<const GraphBatch> batch_of(
    std::shared_ptr<const Graph> graph);  // a batch of one graph
// Copy graph g out of a batch.
std::shared_ptr<const Graph> graph_of(const GraphBatch& batch, int32_t g);

}  // namespace cavs
