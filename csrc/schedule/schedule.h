// The schedule of a batch: rows, kinds and batch tasks (Cavs, Algorithm 1, as data).
//
// Vertices are renumbered into rows: sorted by (kind, level, vertex id). So the rows of a kind are
// contiguous, those of all vertices with children too, and inside a kind the rows of each task
// (kind, level). Edges are
// renumbered into edge rows: sorted by (row of the parent, position among its children), so the
// edge rows of a row range are contiguous.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "graph/graph.h"

namespace cavs {

struct RowRange {
  int32_t begin = 0, end = 0;
  int32_t size() const { return end - begin; }
  bool operator==(const RowRange&) const = default;
};

// A frontier of ready vertices of one kind and level.
struct BatchTask {
  int32_t kind;  // index into Schedule::kinds
  int32_t level;
  RowRange rows, edges;
};

// Vertices that are specialised alike: key = 2 * presence_bits + (has children).
struct Kind {
  uint64_t key;
  RowRange rows, edges;
};

struct Schedule {
  std::shared_ptr<const GraphBatch> batch;
  std::vector<Kind> kinds;       // those that occur: with children first, then by ascending key
  std::vector<BatchTask> tasks;  // ascending (level, kind)
  int32_t num_levels = 0;

  std::vector<int32_t> order;          // row -> vertex
  std::vector<int32_t> row;            // vertex -> row
  std::vector<int32_t> edge_order;     // edge row -> edge (global edge id in the batch's CSR)
  std::vector<int32_t> edge_offsets;   // row -> first edge row; num_vertices + 1
  std::vector<int32_t> child;          // edge row -> row of the child
  std::vector<int32_t> parent;         // edge row -> row of the parent
  std::vector<int32_t> out_offsets;    // row -> range in out_edges; num_vertices + 1
  std::vector<int32_t> out_edges;      // edge rows that read this row, ascending
  std::vector<int32_t> graph_of;       // row -> graph
  std::vector<int32_t> graph_offsets;  // graph -> range in graph_rows; num_graphs + 1
  std::vector<int32_t> graph_rows;     // rows of each graph, ascending vertex id
  int32_t max_arity = 0;

  // Derived index arrays, made on first use and kept (thread safe).
  const int32_t* nth_child(int32_t k) const;      // row -> row of the k-th child, or -1
  const int32_t* nth_edge(int32_t k) const;       // row -> edge row of the k-th child, or -1
  const int32_t* parent_if_nth(int32_t k) const;  // edge row -> row of the parent if the edge is
                                                  // its k-th, else -1
  const int32_t* nth_leaf(int32_t k) const;  // as nth_child, but -1 where that child has children
  // Segments in one array: num_vertices + 1 offsets, then for each row, ascending, the rows of the
  // parents whose k-th child it is.
  const int32_t* nth_parents(int32_t k) const;

  // A permuted copy of a per-vertex / per-edge index feature: out[row] = values[order[row]].
  std::vector<int32_t> permute_vertices(const int32_t* values) const;
  std::vector<int32_t> permute_edges(const int32_t* values) const;

 private:
  mutable std::mutex mutex_;
  mutable std::map<int64_t, std::vector<int32_t>> derived_;
};

// presence: one bit mask a vertex (null: all zero): which optional features it has, as the program
// numbers them. Linear in vertices and edges.
std::shared_ptr<const Schedule> make_schedule(std::shared_ptr<const GraphBatch> batch,
                                              const uint32_t* presence);

}  // namespace cavs
