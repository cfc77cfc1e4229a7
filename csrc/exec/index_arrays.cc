#include "exec/index_arrays.h"

#include <stdexcept>

#include "exec/spaces.h"

namespace cavs {
namespace {

// Split one array that holds offsets, then rows.
IndexArrays segments(const int32_t* offsets, size_t count) {
  return {{offsets + count + 1, static_cast<size_t>(offsets[count])}, {offsets, count + 1}};
}

// The segments of the graphs of one structure.
IndexArrays of_structure(IndexArrays all, int32_t structure, int32_t graphs) {
  return {all.index, all.offsets.subspan(structure * graphs, graphs + 1)};
}

}  // namespace

IndexArrays segments_of(const Operand& o, const Schedule& s) {
  const size_t vertices = s.order.size();
  switch (o.array) {
    case Array::kChildren:
      return {s.child, s.edge_offsets};
    case Array::kEdges:
      return {{}, s.edge_offsets};
    case Array::kOut:
      return {s.out_edges, s.out_offsets};
    case Array::kParents:
      return {{s.out_parents(), s.out_edges.size()}, s.out_offsets};
    case Array::kNthParents:
      return segments(s.nth_parents(o.argument), vertices);
    case Array::kGraphRows:
      return of_structure({s.graph_rows, s.graph_offsets}, o.argument, s.num_graphs());
    case Array::kGraphRoots:
      return of_structure(segments(s.graph_roots(), s.num_parts()), o.argument, s.num_graphs());
    case Array::kGraphLeaves:
      return of_structure(segments(s.graph_leaves(), s.num_parts()), o.argument, s.num_graphs());
    case Array::kLinkedRows:
      return segments(s.linked_rows(o.argument), vertices);
    case Array::kPairs:
      return {{}, {s.linked_rows(o.argument), vertices + 1}};
    case Array::kSourcePairs:
      return segments(s.source_pairs(o.argument), vertices);
    case Array::kLinkReaders:
      return segments(s.link_readers(o.argument), vertices);
    case Array::kRowGraphs:
      return segments(s.row_graphs(), vertices);
    case Array::kRootGraphs:
      return segments(s.root_graphs(), vertices);
    case Array::kLeafGraphs:
      return segments(s.leaf_graphs(), vertices);
    default:
      return {};
  }
}

IndexArrays index_arrays(const Operand& o, Space space, const Schedule& s,
                         const IndexFeatures& features) {
  const size_t vertices = s.order.size(), edges = s.edge_order.size();
  switch (o.array) {
    case Array::kNone:
      return {};
    case Array::kOrder:
      return {s.order, {}};
    case Array::kEdgeOrder:
      return {s.edge_order, {}};
    case Array::kChild:
      return {s.child, {}};
    case Array::kParent:
      return {s.parent, {}};
    case Array::kNthChild:
      return {{s.nth_child(o.argument), vertices}, {}};
    case Array::kNthLeaf:
      return {{s.nth_leaf(o.argument), vertices}, {}};
    case Array::kNthEdge:
      return {{s.nth_edge(o.argument), vertices}, {}};
    case Array::kParentIfNth:
      return {{s.parent_if_nth(o.argument), edges}, {}};
    case Array::kGraphOf:
      if (s.graph_of.size() != vertices) {
        throw std::invalid_argument("merged vertices are not of one graph each");
      }
      return {s.graph_of, {}};
    case Array::kIndexFeature:
      return {features.rows(o.argument, space), {}};
    case Array::kPairTarget:
      return {{s.pair_target(o.argument), static_cast<size_t>(s.num_pairs(o.argument))}, {}};
    case Array::kPairOrder:
      return {{s.pair_order(o.argument), static_cast<size_t>(s.num_pairs(o.argument))}, {}};
    case Array::kPairSource:
      return {segments(s.linked_rows(o.argument), vertices).index, {}};
    case Array::kLinked:
      return {{s.linked(o.argument), vertices}, {}};
    case Array::kPresent:
    case Array::kPresentOrder:
    case Array::kPlace:
    case Array::kDistinct:
      return {features.selected(o.array, o.argument), {}};
    default:
      return segments_of(o, s);
  }
}

Operand numbers_of_rows(Space space) {
  Operand o{};
  o.map = RowMap::kIndex;
  if (is_vertex(space)) o.array = Array::kOrder;
  if (is_edge(space)) o.array = Array::kEdgeOrder;
  if (is_pairs(space)) o.array = Array::kPairOrder, o.argument = link_number(space);
  if (is_present(space)) o.array = Array::kPresentOrder, o.argument = feature_of(space);
  return o;
}

}  // namespace cavs
