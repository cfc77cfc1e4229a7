#include "exec/validate_access.h"

#include <stdexcept>

#include "exec/spaces.h"

namespace cavs {

void AccessChecks::need(bool ok, const std::string& what) const {
  if (!ok) throw std::invalid_argument("[" + label_ + "] " + what);
}

std::string AccessChecks::differ(const char* what, int64_t a, int64_t b) {
  return std::string(what) + ": " + std::to_string(a) + " != " + std::to_string(b);
}

void AccessChecks::check_buffer_id(int32_t id) const {
  need(id >= 0 && id < static_cast<int32_t>(p_.buffers.size()),
       "buffer " + std::to_string(id) + " of " + std::to_string(p_.buffers.size()));
}

void AccessChecks::check_columns(int32_t buffer, int64_t column, int64_t width, bool flat) const {
  check_buffer_id(buffer);
  const Buffer& b = p_.buffers[buffer];
  need(column >= 0 && width > 0, "columns [" + std::to_string(column) + ", " +
                                     std::to_string(column + width) + ") make no sense");
  if (flat && (b.role == Role::kParam || b.role == Role::kGrad)) return;
  need(column + width <= b.width,
       "columns [" + std::to_string(column) + ", " + std::to_string(column + width) +
           ") of buffer " + std::to_string(buffer) + ", which has " + std::to_string(b.width));
}

void AccessChecks::check_operand(const Operand& o, Space s, bool of_parents) const {
  check_columns(o.buffer, o.column, o.width, o.map == RowMap::kOne);
  const Buffer& b = p_.buffers[o.buffer];
  const std::string reads = std::string(role_name(b.role)) + " buffer " + std::to_string(o.buffer) +
                            " of " + rows_name(b) + " from " + space_name(s);
  const bool constant = b.role == Role::kOnes || b.role == Role::kCount;
  if (constant && (o.map == RowMap::kOne || o.map == RowMap::kSelf)) return;
  switch (o.map) {
    case RowMap::kOne:
      need(b.role == Role::kParam || b.role == Role::kGrad || b.space == kOneSpace,
           "reads one row of " + reads);
      return;
    case RowMap::kSelf:
      if (b.role == Role::kParam || b.role == Role::kGrad) {
        need(s == kOneSpace, "reads " + reads + " row by row");
      } else if (b.role == Role::kFeature) {
        need(s == kGraphSpace || s == kOneSpace,
             "reads " + reads + " without an order: features are in the caller's order");
      } else {
        need(has_rows(b, s), "reads " + reads + " row by row");
      }
      return;
    case RowMap::kIndex:
      need(o.array != Array::kNone && (of_parents || !is_segments(o.array)),
           std::string("reads ") + reads + " by index with array " + array_name(o.array));
      break;
    case RowMap::kSegmentSum:
      need(is_segments(o.array),
           std::string("sums segments of ") + reads + " with array " + array_name(o.array));
      break;
  }
  check_array(o, b, s, "reads " + reads + " through " + array_name(o.array));
}

void AccessChecks::check_array(const Operand& o, const Buffer& b, Space s,
                               const std::string& what) const {
  bool from = true, to = true;
  const bool feature = b.role == Role::kFeature;
  if (b.role == Role::kParam || b.role == Role::kGrad) {
    need(b.role == Role::kParam && o.array == Array::kIndexFeature, what);
    return;
  }
  const bool constant = b.role == Role::kOnes || b.role == Role::kCount;
  switch (o.array) {
    case Array::kOrder:
      from = is_vertex(s), to = feature;
      break;
    case Array::kEdgeOrder:
      from = is_edge(s), to = feature;
      break;
    case Array::kIndexFeature:
      to = feature;
      break;
    case Array::kGraphOf:
      from = is_vertex(s), to = feature || b.space == kGraphSpace;
      break;
    case Array::kChild:
      from = is_edge(s), to = !feature && all_vertices(b);
      break;
    case Array::kNthChild:
    case Array::kChildren:
      from = is_vertex(s), to = !feature && all_vertices(b);
      break;
    case Array::kParent:
    case Array::kParentIfNth:
      from = is_edge(s),
      to = !feature && from && contains(b.space, vertices_of(s)) && b.held != Held::kLeaves;
      break;
    case Array::kNthEdge:
    case Array::kEdges:
      from = is_vertex(s), to = !feature && from && contains(b.space, edges_of(s));
      break;
    case Array::kOut:
      from = is_vertex(s), to = !feature && b.space == kEdgeSpace;
      break;
    case Array::kNthParents:
    case Array::kParents:
      from = is_vertex(s), to = !feature && holds_parents(b);
      break;
    case Array::kNthLeaf:
      from = is_vertex(s), to = b.space == kVertexSpace && !feature && b.held != Held::kInner;
      break;
    case Array::kRowGraphs:
    case Array::kRootGraphs:
    case Array::kLeafGraphs:
      from = is_vertex(s), to = feature || b.space == kGraphSpace;
      break;
    case Array::kGraphRows:
    case Array::kGraphRoots:
    case Array::kGraphLeaves:
      from = s == kGraphSpace, to = !feature && all_vertices(b);
      break;
    case Array::kPresent:
      from = is_present(s) && feature_of(s) == o.argument, to = !feature && all_vertices(b);
      break;
    case Array::kPresentOrder:
      from = is_present(s) && feature_of(s) == o.argument, to = feature;
      break;
    case Array::kPlace:
      from = is_vertex(s);
      to = !feature && is_present(b.space) && feature_of(b.space) == o.argument;
      break;
    case Array::kNone:
      from = false;
      break;
  }
  need(from && (to || constant), what);
  if (has_argument(o.array)) {
    need(o.argument >= 0 && o.argument < kMostIndices,
         what + " with argument " + std::to_string(o.argument));
  }
}

bool AccessChecks::has_rows(const Buffer& b, Space s) const {
  if (b.held == Held::kAll || !is_vertex(s)) return contains(b.space, s);
  return kind_of(s) >= 0 && (p_.kinds[kind_of(s)] % 2 == 1) == (b.held == Held::kInner);
}

bool AccessChecks::holds_parents(const Buffer& b) const {
  for (size_t k = 0; k < p_.kinds.size(); ++k) {
    const auto kind = static_cast<Space>(kVertexKind0 + 2 * k);
    if (p_.kinds[k] % 2 == 1 && !has_rows(b, kind)) return false;
  }
  return is_vertex(b.space);
}

void AccessChecks::check_out(int32_t buffer, int64_t column, int64_t width, Space s) const {
  check_columns(buffer, column, width, s == kOneSpace);
  const Buffer& b = p_.buffers[buffer];
  const bool writable = b.role == Role::kArena || b.role == Role::kScratch || b.role == Role::kGrad;
  need(writable, "writes " + std::string(role_name(b.role)) + " buffer " + std::to_string(buffer));
  need(
      b.role == Role::kGrad ? s == kOneSpace : has_rows(b, s),
      "writes buffer " + std::to_string(buffer) + " of " + rows_name(b) + " from " + space_name(s));
}

}  // namespace cavs
