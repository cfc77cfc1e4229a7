// Merging of vertices in a batch that compute the same values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "graph/graph.h"

namespace cavs {

// A feature of every vertex or edge: `bytes` per row, contiguous rows.
struct FeatureColumn {
  const std::byte* data;
  size_t bytes;
};

// The distinct vertices of a batch as one graph; each represents all its copies.
struct MergedGraph {
  std::shared_ptr<const GraphBatch> graph;  // one graph; children first
  PooledVector<int32_t> vertex;             // distinct vertex -> its first copy in the batch
  PooledVector<int32_t> edge;               // edge of graph -> edge of the first copy, in the batch
  PooledVector<int32_t> distinct;           // vertex of the batch -> distinct vertex
  PooledVector<int32_t> copies;  // distinct vertex -> number of vertices that it represents
  PooledVector<uint32_t> leaf;   // distinct vertex -> mask of leaf children, see merge_copies
};

// child_numbers: with K > 0 leaves are also distinguished by their use. Bit k of `leaf` is set if a
// leaf is the k-th child of another vertex, k < K <= 32; for a vertex with children, if its k-th
// child is a leaf.
//
// Two vertices are copies if their rows of all columns are equal byte by byte and their children,
// in order, are copies at equal positions, over equal edges. Hash-consing, children first, in time
// linear in vertices, edges and bytes; equality is tested on the values, never on the hash alone.
MergedGraph merge_copies(const GraphBatch& batch, const std::vector<FeatureColumn>& of_vertices,
                         const std::vector<FeatureColumn>& of_edges, int32_t child_numbers = 0);

// Copies by components: two vertices are copies only if all vertices connected with them, upwards
// or downwards, are copies too, in the order of their numbers. So a vertex has the values of its
// copies also where states come from parents. `leaf` is zero.
MergedGraph merge_components(const GraphBatch& batch, const std::vector<FeatureColumn>& of_vertices,
                             const std::vector<FeatureColumn>& of_edges);

// The vertices of a structure that run: all of them, in any number of graphs; or the distinct ones
// of a MergedGraph, with its arrays.
struct StructureCopies {
  std::shared_ptr<const GraphBatch> graph;
  const int32_t *vertex = nullptr, *distinct = nullptr;
};

struct MergedStructures {
  std::shared_ptr<GraphBatch> graph;  // one graph for each structure, with the links of samples
  PooledVector<int32_t> distinct;     // vertex of the samples -> vertex of `graph`
};

// Join the vertices of each structure of `samples` that run. A link leads from the first copy of
// each vertex of its target to distinct vertices of its source.
MergedStructures merge_structures(const GraphBatch& samples,
                                  const std::vector<StructureCopies>& structures);

}  // namespace cavs
