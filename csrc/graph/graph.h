// Input graphs and their collation. A vertex's children are its predecessors: they run first.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/pooled_vector.h"

namespace cavs {

// The structure of a sample or a batch in CSR form: vertex v gathers from children[offsets[v] ..
// offsets[v + 1]), in order. A vertex may lack a child at a position before that of another: an
// edge exists for each child alone. Immutable once built.
struct Graph {
  PooledVector<int32_t> offsets;   // num_vertices + 1
  PooledVector<int32_t> children;  // num_edges
  PooledVector<int32_t> level;     // 1 + max level of the children, 0 without children
  PooledVector<uint8_t> number;    // its first position as a child, see number_children
  // Position of each edge among the children of its parent; empty if no vertex lacks a child.
  PooledVector<int32_t> position;
  int32_t num_levels = 0;
  int32_t num_numbers = 1;
  bool chains = false;  // no vertex has more than one child or parent, and none lacks a child
  bool children_first = false;  // every child has a smaller number than its parents

  int32_t num_vertices() const { return static_cast<int32_t>(offsets.size()) - 1; }
  int32_t num_edges() const { return static_cast<int32_t>(children.size()); }
  // Position of edge e of a vertex whose first edge is `first`.
  int32_t position_of(int32_t e, int32_t first) const {
    return position.empty() ? e - first : position[e];
  }
};

// Error of an invalid graph. vertex is -1 unless a single vertex is at fault.
struct GraphError : std::runtime_error {
  GraphError(const std::string& what, int64_t vertex_)
      : std::runtime_error(what), vertex(vertex_) {}
  int64_t vertex;
};

// Check offsets and children (dangling indices, cycles) and compute levels by one Kahn pass, linear
// in vertices and edges, without recursion. A child of -1 leaves its position empty. Throws
// GraphError.
std::shared_ptr<const Graph> make_graph(PooledVector<int32_t> offsets,
                                        PooledVector<int32_t> children);
// (offsets, children) from which make_graph builds the graph, with -1 where a position is empty.
std::pair<PooledVector<int32_t>, PooledVector<int32_t>> child_lists(const Graph& graph);
// Set `number` of each vertex to its least position among the children of another, at most kNumbers
// - 1; 0 if it is no child. num_numbers: one more than the largest.
constexpr int32_t kNumbers = 8;
void number_children(Graph* graph);
// Reverse every edge: children become parents. Order: by the original parent, then position; no
// position is empty.
std::shared_ptr<const Graph> reverse_graph(const Graph& graph);

// The data of a graph that a batch reads, for any storage.
struct GraphView {
  int32_t num_vertices, num_edges, num_levels, num_numbers;
  bool chains, children_first;
  const int32_t *offsets, *children, *level;
  const uint8_t* number;
  const int32_t* position;  // null if no position is empty
};
GraphView view_of(const Graph& graph);

// For each vertex of one structure of the samples the vertices of another that it reads.
struct Link {
  int32_t target, source;          // numbers of the structures
  PooledVector<int32_t> offsets;   // vertex of the target, from 0 -> range in `vertices`
  PooledVector<int32_t> vertices;  // vertices of the batch
};

// Several graphs as one: vertex ids are shifted by the sizes of the graphs before. With several
// structures a sample it has one graph for each sample and structure: first those of structure 0 of
// all samples, then those of structure 1, so that vertices and edges of a structure are contiguous.
struct GraphBatch {
  std::shared_ptr<const Graph> all;
  PooledVector<int32_t> vertex_offsets;  // num_parts + 1
  PooledVector<int32_t> edge_offsets;    // num_parts + 1
  int32_t num_structures = 1;
  std::vector<Link> links;
  int32_t num_parts() const { return static_cast<int32_t>(vertex_offsets.size()) - 1; }
  int32_t num_graphs() const { return num_parts() / num_structures; }  // samples
  // First vertex, and edge, of a structure; the number of all for the one after the last.
  int32_t first_vertex(int32_t structure) const { return vertex_offsets[structure * num_graphs()]; }
  int32_t first_edge(int32_t structure) const { return edge_offsets[structure * num_graphs()]; }
  int32_t num_vertices() const { return all->num_vertices(); }
  int32_t num_edges() const { return all->num_edges(); }
};

std::shared_ptr<const GraphBatch> collate(const std::vector<GraphView>& graphs);
std::shared_ptr<const GraphBatch> batch_of(
    std::shared_ptr<const Graph> graph);  // a batch of one graph
// The structures of samples, each a batch of as many graphs, as one batch. Throws GraphError if
// there are too many vertices or edges.
std::shared_ptr<GraphBatch> stack_structures(
    const std::vector<std::shared_ptr<const GraphBatch>>& structures);
// The link of one sample: the vertices that vertex v of its target reads, vertices[offsets[v] ..
// offsets[v + 1]); one each, vertices[v], -1 for none, where offsets is null; or all vertices of
// the source where both are null.
struct LinkPart {
  const int32_t *offsets, *vertices;
};
// The link of all samples of a batch, in order. Throws GraphError for a vertex that is not there,
// or for more vertices to read than an int32 counts.
Link join_links(const GraphBatch& batch, int32_t target, int32_t source,
                const std::vector<LinkPart>& parts);
// Copy graph g out of a batch.
std::shared_ptr<const Graph> graph_of(const GraphBatch& batch, int32_t g);

}  // namespace cavs
