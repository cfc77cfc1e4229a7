// The kinds of the vertices of a batch.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/graph.h"

namespace cavs {

// Key of a kind of vertices of one structure: structure << kStructureShift | 2 * presence bits +
// (has children).
constexpr int kStructureShift = 33;
inline int32_t structure_of(uint64_t key) { return static_cast<int32_t>(key >> kStructureShift); }
inline bool has_children(uint64_t key) { return key % 2 == 1; }

// The kind of each vertex, by first occurrence; the order of the kinds, by structure, those with
// children first, then by ascending key; and their keys.
struct Kinds {
  PooledVector<int32_t> of_vertex, order;
  std::vector<uint64_t> keys;
};

// presence: one bit mask per vertex, or null.
Kinds classify(const GraphBatch& batch, const uint32_t* presence);

}  // namespace cavs
