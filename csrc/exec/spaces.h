// Relations between spaces, the rows that index arrays map from and to, and rows of spaces in a
// batch.
#pragma once

#include <string>
#include <vector>

#include "exec/program.h"
#include "schedule/schedule.h"

namespace cavs {

inline bool is_vertex(Space s) { return s == kVertexSpace || (s >= kVertexKind0 && s % 2 == 0); }
inline bool is_edge(Space s) { return s == kEdgeSpace || (s >= kEdgeKind0 && s % 2 == 1); }
inline bool is_present(Space s) { return s <= kPresent0; }
inline int32_t feature_of(Space present) { return kPresent0 - present; }
// The space of all rows like those of `s`: int features are permuted to its order.
inline Space whole_of(Space s) { return is_vertex(s) ? kVertexSpace : is_edge(s) ? kEdgeSpace : s; }
// The kind of the program that a space is limited to, or -1.
inline int32_t kind_of(Space s) { return s < kVertexKind0 ? -1 : (s - kVertexKind0) / 2; }
inline Space edges_of(Space vertices) { return vertices + 1; }
inline Space vertices_of(Space edges) { return edges - 1; }
// True if every row of `inner` is a row of `outer`.
inline bool contains(Space outer, Space inner) {
  return outer == inner || (outer == kVertexSpace && is_vertex(inner)) ||
         (outer == kEdgeSpace && is_edge(inner));
}

inline bool all_vertices(const Buffer& b) {
  return b.space == kVertexSpace && b.held == Held::kAll;
}

inline bool is_segments(Array a) {
  return a == Array::kChildren || a == Array::kEdges || a == Array::kOut ||
         a == Array::kGraphRows || a == Array::kNthParents || a == Array::kGraphRoots ||
         a == Array::kRowGraphs || a == Array::kRootGraphs || a == Array::kGraphLeaves ||
         a == Array::kLeafGraphs || a == Array::kParents;
}
// True if it reads one row for each edge to a parent, in kernels that sum over these edges.
inline bool is_of_parents(const Instruction& in, const Operand& o) {
  return in.outward && o.map == RowMap::kIndex &&
         (o.array == Array::kOut || o.array == Array::kParents);
}
// True if it depends on the vertices at which an int feature is present.
inline bool of_present(Array a) {
  return a == Array::kPresent || a == Array::kPresentOrder || a == Array::kPlace;
}
inline bool has_argument(Array a) {
  return a == Array::kNthChild || a == Array::kNthEdge || a == Array::kParentIfNth ||
         a == Array::kIndexFeature || a == Array::kNthParents || a == Array::kNthLeaf ||
         of_present(a);
}
// True if it stays inside one chunk of rows and their edges, for any chunk.
inline bool is_local(const Operand& o) {
  if (o.map == RowMap::kSelf || o.map == RowMap::kOne) return true;
  return o.array == Array::kParent || o.array == Array::kParentIfNth ||
         o.array == Array::kNthEdge || o.array == Array::kEdges;
}
// Row ranges of the program's spaces in a batch, and the program's kind for each kind of the
// schedule.
struct Spaces {
  std::vector<RowRange> ranges;
  std::vector<RowRange> present;  // by int feature
  RowRange held[3];               // by Held
  std::vector<int32_t> kinds;
  RowRange rows(Space s) const { return s <= kPresent0 ? present[kPresent0 - s] : ranges[s]; }
  RowRange rows_of(const Buffer& b) const {
    return b.held == Held::kAll ? rows(b.space) : held[static_cast<int>(b.held)];
  }
};
// present: rows of the spaces of vertices with a feature, by feature. Throws std::runtime_error for
// a kind of the batch that the program does not have.
void resolve_spaces(const Program& program, const Schedule& schedule,
                    const std::vector<RowRange>& present, Spaces& spaces);

std::string space_name(Space s);
std::string rows_name(const Buffer& b);  // its space, and the rows of it that are held

}  // namespace cavs
