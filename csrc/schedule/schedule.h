// The schedule of a batch: rows, kinds and batch tasks (Cavs, Algorithm 1, as data).
//
// Vertices are renumbered into rows, sorted by (structure, kind, task, number as a child, vertex
// id). So the rows of a kind are contiguous, as are the rows of a structure, those of its vertices
// with children, the rows of each task and, in a tree, the rows of a task that are k-th children.
// Edges are renumbered into edge rows, sorted by (row of the parent, position among its children),
// so the edge rows of a row range are contiguous.
//
// A task is one kind at one level, or all ready vertices of the kind that a policy chooses. Kinds,
// and so tasks, are of one structure. Vertices along links are no children: earlier stages have
// computed their values.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "graph/graph.h"
#include "schedule/policy.h"

namespace cavs {

struct RowRange {
  int32_t begin = 0, end = 0;
  int32_t size() const { return end - begin; }
  bool operator==(const RowRange&) const = default;
};

// Vertices of one kind that run together. No vertex has a child in a task of the same or a higher
// level. level: that of the vertices in their graphs; with a policy the number of its step, a
// series of consecutive tasks, of any structures, in which no task has children of another.
struct BatchTask {
  int32_t kind;  // index into Schedule::kinds
  int32_t level;
  RowRange rows, edges;
};

struct Kind {
  uint64_t key;
  RowRange rows, edges;
};

struct Schedule {
  std::shared_ptr<const GraphBatch> batch;
  std::shared_ptr<const GraphBatch>
      graphs;               // graphs of the caller: `batch`, or what it is merged from
  std::vector<Kind> kinds;  // in the batch: by structure, with children first, by ascending key
  // Ascending level over all structures, those of one level by kind; with a policy in its order.
  std::vector<BatchTask> tasks;
  int32_t num_levels = 0;

  PooledVector<int32_t> order;         // row -> vertex, from the first of its structure
  PooledVector<int32_t> row;           // vertex of the batch -> row
  PooledVector<int32_t> edge_order;    // edge row -> edge, from the first of its structure
  PooledVector<int32_t> edge_offsets;  // row -> first edge row; num_vertices + 1
  PooledVector<int32_t> child;         // edge row -> row of the child
  PooledVector<int32_t> parent;        // edge row -> row of the parent
  PooledVector<int32_t> position;      // edge row -> position of the child; see Graph::position
  PooledVector<int32_t> out_offsets;   // row -> range in out_edges; num_vertices + 1
  PooledVector<int32_t> out_edges;     // edge rows that read this row, ascending
  // row -> graph. Empty where all rows are merged vertices; of several structures, of which some
  // are merged, a merged vertex has the last of its graphs.
  PooledVector<int32_t> graph_of;
  PooledVector<int32_t> graph_offsets;  // structure and graph -> range in graph_rows; num_parts + 1
  PooledVector<int32_t> graph_rows;     // rows of each graph, ascending vertex id in `graphs`
  int32_t max_arity = 0;                // one more than the last position of a child

  int32_t num_graphs() const { return graphs->num_graphs(); }
  int32_t num_parts() const { return graphs->num_parts(); }
  // Rows, and edge rows, of a structure.
  RowRange rows_of(int32_t structure) const {
    return {batch->first_vertex(structure), batch->first_vertex(structure + 1)};
  }
  RowRange edges_of(int32_t structure) const {
    return {batch->first_edge(structure), batch->first_edge(structure + 1)};
  }
  // Position of the child of edge row e among the children of its parent.
  int32_t position_of(int32_t e) const {
    return position.empty() ? e - edge_offsets[parent[e]] : position[e];
  }
  // For each kind, one more than the last position of a child of its vertices.
  std::vector<int32_t> max_arities() const;

  // Derived index arrays, computed on first use and cached. Thread-safe.
  const int32_t* nth_child(int32_t k) const;      // row -> row of the k-th child, or -1
  const int32_t* nth_edge(int32_t k) const;       // row -> edge row of the k-th child, or -1
  const int32_t* parent_if_nth(int32_t k) const;  // edge row -> row of the parent if the edge is
                                                  // its k-th, else -1
  const int32_t* nth_leaf(int32_t k) const;       // like nth_child, but only childless children
  // Segments in one array, offsets first: the rows of the parents whose k-th child a row is.
  const int32_t* nth_parents(int32_t k) const;
  const int32_t* out_parents() const;  // row of the parent of each of out_edges
  // row -> row of the first vertex that link l leads to, or -1; segments in one array each, offsets
  // first: rows of all vertices that link l leads to from a row, in order, and of those from which
  // it leads to a row, ascending.
  const int32_t* linked(int32_t l) const;
  const int32_t* linked_rows(int32_t l) const;
  const int32_t* link_readers(int32_t l) const;
  // Pairs of a target and a vertex that it reads are numbered as in linked_rows. pair -> row of the
  // target; pair -> pair of the batch, by target; segments, offsets first: pairs that read a row.
  const int32_t* pair_target(int32_t l) const;
  const int32_t* pair_order(int32_t l) const;
  const int32_t* source_pairs(int32_t l) const;
  int32_t num_pairs(int32_t l) const {
    return static_cast<int32_t>(batch->links.at(l).vertices.size());
  }
  // Segments in one array each, offsets first: rows of the roots and of the leaves of each graph of
  // each structure; graphs that a row is a vertex of (once for each vertex merged into it), a root
  // or a leaf of.
  const int32_t* graph_roots() const;
  const int32_t* graph_leaves() const;
  const int32_t* row_graphs() const;
  const int32_t* root_graphs() const;
  const int32_t* leaf_graphs() const;

  // Values of vertices or edges in the order of rows: out[row] = values[order[row]]. Those of a
  // batch with one structure; with several, `order` counts from the first of each.
  PooledVector<int32_t> permute_vertices(const int32_t* values) const;
  PooledVector<int32_t> permute_edges(const int32_t* values) const;

 private:
  // array[row] = of_edge(edge row) of its k-th child, or -1.
  template <class F>
  void fill_nth(int32_t k, PooledVector<int32_t>* array, F&& of_edge) const;
  // The derived array `key`, filled by fill(array) on first use.
  template <class F>
  const int32_t* derive(int64_t key, F&& fill) const;
  const int32_t* roots_or_leaves(bool leaves) const;
  // Invert segments of rows, one for each graph.
  const int32_t* graphs_of(const int32_t* offsets, const int32_t* rows, int64_t key) const;

  mutable std::mutex mutex_;
  mutable std::map<int64_t, PooledVector<int32_t>> derived_;
};

// The batch that a batch of distinct vertices was merged from.
struct MergedFrom {
  std::shared_ptr<const GraphBatch> graphs;
  const int32_t* distinct;  // vertex of `graphs` -> distinct vertex
};

// One bit mask per row. Bit i is set if bit child_numbers[i] of `leaf` is (see merge_copies); the
// bits after those are set if each feature is present (>= 0) at vertex rows[r], or r if `rows` is
// null. At most 32 bits.
PooledVector<uint32_t> presence_masks(int32_t count, const std::vector<const int32_t*>& features,
                                      const int32_t* rows = nullptr, const uint32_t* leaf = nullptr,
                                      const std::vector<int32_t>& child_numbers = {});

// Schedule a batch in time linear in vertices and edges. presence: one bit mask per vertex of its
// optional features, as the program numbers them (null: all zero). merged_from: empty unless
// vertices are merged. by_number: sort the rows of a task by which child they are, for products at
// the child; else keep the order of the batch, in which siblings are neighbours. policy: chooses
// the kind of every task, in time linear in edges plus tasks times kinds; null: run level by level.
std::shared_ptr<const Schedule> make_schedule(std::shared_ptr<const GraphBatch> batch,
                                              const uint32_t* presence,
                                              const MergedFrom& merged_from = {},
                                              bool by_number = true,
                                              const SchedulingPolicy* policy = nullptr);

}  // namespace cavs
