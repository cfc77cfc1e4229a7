// Relations between spaces, the rows that index arrays map from and to, and rows of spaces in a
// batch.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "exec/program.h"
#include "schedule/schedule.h"

namespace cavs {

inline bool is_pairs(Space s) { return s >= kPairs0; }
inline bool is_vertex(Space s) {
  return s == kVertexSpace || (s >= kVertexKind0 && !is_pairs(s) && s % 2 == 0);
}
inline bool is_edge(Space s) {
  return s == kEdgeSpace || (s >= kEdgeKind0 && !is_pairs(s) && s % 2 == 1);
}
inline int32_t link_number(Space pairs) { return (pairs - kPairs0) / kPairsStride; }
// The relation that leads from vertices to the rows of a space: kEdges from parents to edges, 1 + l
// to the pairs of link l, kNoRelation to other rows.
constexpr int32_t kNoRelation = -1, kEdges = 0;
inline int32_t relation_of(Space s) {
  return is_pairs(s) ? 1 + link_number(s) : is_edge(s) ? kEdges : kNoRelation;
}
// True for rows that an int feature selects: vertices where it is present, or its distinct values.
inline bool is_selected(Space s) { return s <= kPresent0; }
inline bool is_distinct(Space s) { return s <= kDistinct0; }
inline bool is_present(Space s) { return is_selected(s) && !is_distinct(s); }
inline bool is_structure(Space s) { return s >= kVertexStructure0 && !is_pairs(s); }
// True for all vertices, or edges, of the batch or of a structure.
inline bool is_every_vertex(Space s) {
  return s == kVertexSpace || (is_structure(s) && is_vertex(s));
}
inline bool is_every_edge(Space s) { return s == kEdgeSpace || (is_structure(s) && is_edge(s)); }
inline int32_t feature_of(Space selected) {
  return (is_distinct(selected) ? kDistinct0 : kPresent0) - selected;
}
// The kind of the program that a space is limited to, or -1.
inline int32_t kind_of(Space s) {
  if (is_pairs(s)) return (s - kPairs0) % kPairsStride - 1;
  return s < kVertexKind0 || is_structure(s) ? -1 : (s - kVertexKind0) / 2;
}
// The structure of an int feature, and the one that the rows of a space belong to: 0 for those of
// graphs.
inline int32_t int_structure(const Program& p, int32_t feature) {
  return static_cast<size_t>(feature) < p.int_structures.size() ? p.int_structures[feature] : 0;
}
inline int32_t structure_of(const Program& p, Space s) {
  if (is_structure(s)) return (s - kVertexStructure0) / 2;
  if (is_selected(s)) return int_structure(p, feature_of(s));
  if (is_pairs(s)) return p.links[link_number(s)].target;
  return s < kVertexKind0 ? 0 : structure_of(p.kinds[kind_of(s)]);
}
inline Space edges_of(Space vertices) { return vertices + 1; }
// The rows of a relation that vertices lead to, and the vertices that lead to edges or pairs.
inline Space related(Space vertices, int32_t relation) {
  if (relation == kEdges) return edges_of(vertices);
  return kPairs0 + kPairsStride * (relation - 1) + kind_of(vertices) + 1;
}
// The order of the rows of `s`, which int features are permuted to: that of all vertices, edges or
// pairs of a link.
inline Space whole_of(Space s) {
  if (is_pairs(s)) return related(kVertexSpace, relation_of(s));
  return is_vertex(s) ? kVertexSpace : is_edge(s) ? kEdgeSpace : s;
}
inline Space vertices_of(const Program& p, Space rows) {
  if (is_edge(rows)) return rows - 1;
  const int32_t kind = kind_of(rows);
  return kind < 0 ? kVertexStructure0 + 2 * structure_of(p, rows) : kVertexKind0 + 2 * kind;
}
// True if every row of `inner` is a row of `outer`.
inline bool contains(const Program& p, Space outer, Space inner) {
  if (outer == inner) return true;
  if (is_structure(outer) && structure_of(p, outer) != structure_of(p, inner)) return false;
  if (is_pairs(outer) && is_pairs(inner)) return related(kVertexSpace, relation_of(inner)) == outer;
  return (is_every_vertex(outer) && is_vertex(inner)) || (is_every_edge(outer) && is_edge(inner));
}

inline bool all_vertices(const Buffer& b) {
  return is_every_vertex(b.space) && b.held == Held::kAll;
}

inline bool is_segments(Array a) {
  return a == Array::kChildren || a == Array::kEdges || a == Array::kOut ||
         a == Array::kGraphRows || a == Array::kNthParents || a == Array::kGraphRoots ||
         a == Array::kRowGraphs || a == Array::kRootGraphs || a == Array::kGraphLeaves ||
         a == Array::kLeafGraphs || a == Array::kParents || a == Array::kLinkedRows ||
         a == Array::kLinkReaders || a == Array::kPairs || a == Array::kSourcePairs;
}
// True if its segments are vertices of each graph of one structure.
inline bool is_of_graphs(Array a) {
  return a == Array::kGraphRows || a == Array::kGraphRoots || a == Array::kGraphLeaves;
}
inline bool is_pair(Array a) {
  return a == Array::kPairs || a == Array::kPairTarget || a == Array::kPairSource ||
         a == Array::kSourcePairs || a == Array::kPairOrder;
}
inline bool is_link(Array a) {
  return a == Array::kLinked || a == Array::kLinkedRows || a == Array::kLinkReaders || is_pair(a);
}
// True if it reads one row for each edge to a parent, in kernels that sum over these edges.
inline bool is_of_parents(const Instruction& in, const Operand& o) {
  return in.outward && o.map == RowMap::kIndex &&
         (o.array == Array::kOut || o.array == Array::kParents);
}
// True if it depends on the vertices at which an int feature is present, or on its distinct values.
inline bool of_selected(Array a) {
  return a == Array::kPresent || a == Array::kPresentOrder || a == Array::kPlace ||
         a == Array::kDistinct;
}
// The space that it leads to or from.
inline Space selected(Array a, int32_t feature) {
  return (a == Array::kDistinct ? kDistinct0 : kPresent0) - feature;
}
inline bool has_argument(Array a) {
  return a == Array::kNthChild || a == Array::kNthEdge || a == Array::kParentIfNth ||
         a == Array::kIndexFeature || a == Array::kNthParents || a == Array::kNthLeaf ||
         of_selected(a) || is_of_graphs(a) || is_link(a);
}
// True if it stays inside one chunk of rows and their edges, for any chunk.
inline bool is_local(const Operand& o) {
  if (o.map == RowMap::kSelf || o.map == RowMap::kOne) return true;
  return o.array == Array::kParent || o.array == Array::kParentIfNth ||
         o.array == Array::kNthEdge || o.array == Array::kEdges || o.array == Array::kPairs ||
         o.array == Array::kPairTarget;
}
// Rows of the spaces that int features select, by feature.
struct SelectedRows {
  std::vector<RowRange> present, distinct;
  bool operator==(const SelectedRows&) const = default;
};
// Row ranges of the program's spaces in a batch, and the program's kind for each kind of the
// schedule.
struct Spaces {
  std::vector<RowRange> ranges;
  SelectedRows selected;
  std::vector<RowRange> structures;  // vertices of structure 0, its edges, vertices of structure 1
  std::vector<std::array<RowRange, 3>> held;  // by structure, then Held
  std::vector<int32_t> kinds;
  std::vector<int32_t> targets;         // structure that each link leads from
  std::vector<const int32_t*> offsets;  // by relation: row -> first related row; of the schedule
  RowRange rows(Space s) const {
    if (is_pairs(s)) {
      const int32_t kind = kind_of(s);
      const RowRange from =
          kind < 0 ? structures[2 * targets[link_number(s)]] : ranges[kVertexKind0 + 2 * kind];
      return related(from, relation_of(s));
    }
    return is_structure(s)  ? structures[s - kVertexStructure0]
           : is_distinct(s) ? selected.distinct[feature_of(s)]
           : is_present(s)  ? selected.present[feature_of(s)]
                            : ranges[s];
  }
  // The rows of a relation that lead from vertex rows.
  RowRange related(RowRange rows, int32_t relation) const {
    return {offsets[relation][rows.begin], offsets[relation][rows.end]};
  }
  RowRange rows_of(const Buffer& b) const {
    if (b.held == Held::kAll) return rows(b.space);
    const int32_t structure = is_structure(b.space) ? (b.space - kVertexStructure0) / 2 : 0;
    return held[structure][static_cast<int>(b.held)];
  }
};
// selected: rows of the spaces that int features select. Throws std::runtime_error for a kind of
// the batch that the program does not have, std::invalid_argument for other structures or links.
void resolve_spaces(const Program& program, const Schedule& schedule, const SelectedRows& selected,
                    Spaces& spaces);

std::string space_name(Space s);
std::string rows_name(const Buffer& b);  // its space, and the rows of it that are held

}  // namespace cavs
