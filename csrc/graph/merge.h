// Vertices of a batch that compute the same values, merged into one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "graph/graph.h"

namespace cavs {

// A feature of every vertex or edge: `bytes` a row, rows one after the other.
struct FeatureColumn {
  const std::byte* data;
  size_t bytes;
};

// The distinct vertices of a batch as one graph; a distinct vertex stands for all its copies.
struct MergedGraph {
  std::shared_ptr<const GraphBatch> graph;  // one; children first
  PooledVector<int32_t> vertex;             // distinct vertex -> its first copy in the batch
  PooledVector<int32_t> edge;               // edge of graph -> that of the first copy, in the batch
  PooledVector<int32_t> distinct;           // vertex of the batch -> distinct vertex
  PooledVector<int32_t> copies;  // distinct vertex -> vertices of the batch it stands for
  PooledVector<uint32_t> leaf;   // distinct vertex -> which leaf children; see merge_copies
};

// child_numbers: with K > 0 vertices without children are told apart also by how they are used. Bit
// k of `leaf` says that such a vertex is the k-th child of another, k < K <= 32; of a vertex with
// children, that its k-th child has none.
//
// Two vertices are copies if their rows of all columns are equal byte by byte and their children,
// in order, are copies over equal edges. Hash-consing, children first: linear in vertices, edges
// and bytes; equality is tested on the values, never on the hash alone.
MergedGraph merge_copies(const GraphBatch& batch, const std::vector<FeatureColumn>& of_vertices,
                         const std::vector<FeatureColumn>& of_edges, int32_t child_numbers = 0);

}  // namespace cavs
