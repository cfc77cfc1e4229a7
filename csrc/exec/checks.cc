#include "exec/checks.h"

#include <stdexcept>

#include "exec/names.h"
#include "exec/spaces.h"

namespace cavs {

std::string label_of(const Instruction& in) {
  return in.label.empty() ? name_of(in.type) : in.label;
}

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
                                     std::to_string(column + width) + ") are no range of columns");
  if (flat && (b.role == Role::kParam || b.role == Role::kGrad)) return;
  need(column + width <= b.width,
       "columns [" + std::to_string(column) + ", " + std::to_string(column + width) +
           ") of buffer " + std::to_string(buffer) + ", which has " + std::to_string(b.width));
}

void AccessChecks::check_operand(const Operand& o, Space s, bool of_parents) const {
  check_columns(o.buffer, o.column, o.width, o.map == RowMap::kOne);
  const Buffer& b = p_.buffers[o.buffer];
  const std::string reads = std::string(name_of(b.role)) + " buffer " + std::to_string(o.buffer) +
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
           std::string("reads ") + reads + " by index with array " + name_of(o.array));
      break;
    case RowMap::kSegmentSum:
      need(is_segments(o.array),
           std::string("sums segments of ") + reads + " with array " + name_of(o.array));
      break;
  }
  check_array(o, b, s, "reads " + reads + " through " + name_of(o.array));
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
      to = !feature && from && contains(p_, b.space, vertices_of(p_, s)) && b.held != Held::kLeaves;
      break;
    case Array::kNthEdge:
    case Array::kEdges:
      from = is_vertex(s), to = !feature && from && contains(p_, b.space, edges_of(s));
      break;
    case Array::kOut:
      from = is_vertex(s), to = !feature && is_every_edge(b.space);
      break;
    case Array::kNthParents:
    case Array::kParents:
      from = is_vertex(s), to = !feature && holds_parents(b);
      break;
    case Array::kNthLeaf:
      from = is_vertex(s), to = is_every_vertex(b.space) && !feature && b.held != Held::kInner;
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
      from = s == selected(o.array, o.argument), to = !feature && all_vertices(b);
      break;
    case Array::kPresentOrder:
      from = s == selected(o.array, o.argument), to = feature;
      break;
    case Array::kPlace:
    case Array::kDistinct:
      from = is_vertex(s), to = !feature && b.space == selected(o.array, o.argument);
      break;
    case Array::kLinked:
    case Array::kLinkedRows:
    case Array::kLinkReaders:
      from = is_vertex(s), to = !feature && all_vertices(b);
      break;
    case Array::kPairs:
      from = is_vertex(s);
      to = !feature && is_pairs(b.space) && contains(p_, b.space, related(s, 1 + o.argument));
      break;
    case Array::kPairTarget:
      from = is_pairs(s) && link_number(s) == o.argument;
      to = !feature && from && has_rows(b, vertices_of(p_, s));
      break;
    case Array::kPairSource:
      from = is_pairs(s) && link_number(s) == o.argument, to = !feature && all_vertices(b);
      break;
    case Array::kSourcePairs:
      from = is_vertex(s), to = !feature && b.space == related(kVertexSpace, 1 + o.argument);
      break;
    case Array::kPairOrder:
      from = is_pairs(s) && link_number(s) == o.argument, to = feature;
      break;
    case Array::kNone:
      from = false;
      break;
  }
  need(from && (to || constant), what);
  const std::string with = what + " with argument " + std::to_string(o.argument);
  if (has_argument(o.array)) need(o.argument >= 0 && o.argument < kMostIndices, with);
  const int32_t read = structure_of(p_, b.space), reader = structure_of(p_, s);
  if (is_of_graphs(o.array)) {
    need(o.argument < p_.structures && (constant || read == o.argument), with);
  } else if (is_link(o.array)) {
    need(o.argument < static_cast<int32_t>(p_.links.size()), with);
    const LinkType link = p_.links[o.argument];
    // Rows of pairs belong to the structure of the target.
    const bool back = o.array == Array::kLinkReaders || o.array == Array::kSourcePairs;
    const bool forward =
        o.array == Array::kLinked || o.array == Array::kLinkedRows || o.array == Array::kPairSource;
    need(reader == (back ? link.source : link.target), with);
    need(constant || read == (forward ? link.source : link.target), with);
  } else if (is_vertex(b.space) || is_edge(b.space) || is_selected(b.space)) {
    need(feature || constant || read == reader, what + ", which are of another structure");
  }
}

bool AccessChecks::has_rows(const Buffer& b, Space s) const {
  if (b.held == Held::kAll || !is_vertex(s)) return contains(p_, b.space, s);
  return contains(p_, b.space, s) && kind_of(s) >= 0 &&
         (p_.kinds[kind_of(s)] % 2 == 1) == (b.held == Held::kInner);
}

bool AccessChecks::holds_parents(const Buffer& b) const {
  for (size_t k = 0; k < p_.kinds.size(); ++k) {
    const auto kind = static_cast<Space>(kVertexKind0 + 2 * k);
    if (structure_of(p_.kinds[k]) != structure_of(p_, b.space)) continue;
    if (p_.kinds[k] % 2 == 1 && !has_rows(b, kind)) return false;
  }
  return is_vertex(b.space);
}

void AccessChecks::check_out(int32_t buffer, int64_t column, int64_t width, Space s) const {
  check_columns(buffer, column, width, s == kOneSpace);
  const Buffer& b = p_.buffers[buffer];
  const bool writable = b.role == Role::kArena || b.role == Role::kScratch || b.role == Role::kGrad;
  need(writable, "writes " + std::string(name_of(b.role)) + " buffer " + std::to_string(buffer));
  need(
      b.role == Role::kGrad ? s == kOneSpace : has_rows(b, s),
      "writes buffer " + std::to_string(buffer) + " of " + rows_name(b) + " from " + space_name(s));
}

void AccessChecks::check_inputs(const Instruction& in, size_t least) const {
  need(in.inputs.size() >= least, "has " + std::to_string(in.inputs.size()) +
                                      " inputs, needs at least " + std::to_string(least));
  for (const Operand& o : in.inputs) check_operand(o, in.space);
}

void AccessChecks::check_stored_rows(const Instruction& in) const {
  for (const Operand& o : in.inputs) {
    need(o.map != RowMap::kSegmentSum, "reads sums of segments: copy them first");
  }
}

void AccessChecks::check_index_feature(const Instruction& in) const {
  need(in.argument >= 0 && in.argument < kMostIndices,
       "int feature " + std::to_string(in.argument));
}

const Weight& AccessChecks::check_weight_id(const Instruction& in) const {
  need(in.weight >= 0 && in.weight < static_cast<int32_t>(p_.weights.size()),
       "weight " + std::to_string(in.weight) + " of " + std::to_string(p_.weights.size()));
  return p_.weights[in.weight];
}

void AccessChecks::check_sum(const Instruction& in, int64_t elements) const {
  check_buffer_id(in.out.buffer);
  const Buffer& b = p_.buffers[in.out.buffer];
  need(in.out.column >= 0, "column " + std::to_string(in.out.column));
  if (b.role == Role::kGrad) return;
  need(b.role == Role::kArena && b.space == kOneSpace,
       "sums into " + std::string(name_of(b.role)) + " buffer " + std::to_string(in.out.buffer) +
           " of " + space_name(b.space));
  need(in.out.column + elements <= b.width, "writes " + std::to_string(elements) + " elements at " +
                                                std::to_string(in.out.column) + " of buffer " +
                                                std::to_string(in.out.buffer) + ", which has " +
                                                std::to_string(b.width));
}

void SizeChecks::need(bool ok, const std::string& label, const std::string& what) const {
  if (!ok) throw std::invalid_argument("[" + label + "] " + what);
}

int64_t SizeChecks::size_of(int32_t param, const std::string& label) const {
  need(param >= 0 && param < static_cast<int32_t>(sizes_.size()), label,
       "parameter " + std::to_string(param) + " of " + std::to_string(sizes_.size()));
  return sizes_[param];
}

void SizeChecks::check_elements(const std::string& label, int32_t buffer, int64_t elements) const {
  const Buffer& b = program_.buffers[buffer];
  if (b.role != Role::kParam && b.role != Role::kGrad) return;
  const int64_t size = size_of(b.index, label);
  need(elements <= size, label,
       "uses " + std::to_string(elements) + " elements of parameter " + std::to_string(b.index) +
           ", which has " + std::to_string(size));
}

void SizeChecks::check() const {
  for (size_t i = 0; i < program_.weights.size(); ++i) {
    for (const WeightPiece& q : program_.weights[i].pieces) {
      const std::string label = "weight " + std::to_string(i);
      const int64_t end = q.offset + (q.rows - 1) * q.row_stride + (q.cols - 1) * q.col_stride + 1;
      const int64_t size = size_of(q.param, label);
      need(end <= size, label,
           "reads up to element " + std::to_string(end) + " of parameter " +
               std::to_string(q.param) + ", which has " + std::to_string(size));
    }
  }
  for (size_t i = 0; i < program_.buffers.size(); ++i) {
    const Buffer& b = program_.buffers[i];
    if (b.role != Role::kParam && b.role != Role::kGrad) continue;
    const std::string label = "buffer " + std::to_string(i);
    const int64_t size = size_of(b.index, label);
    need(size % b.width == 0, label,
         "rows of " + std::to_string(b.width) + " of parameter " + std::to_string(b.index) +
             ", which has " + std::to_string(size) + " elements");
  }
  for (const Instruction& in : program_.instructions) {
    const std::string label = label_of(in);
    each_operand(in, [&](const Operand& o) {
      check_elements(label, o.buffer, int64_t{o.column} + o.width);
    });
    for (const MapStoreSpec& s : in.stores) {
      check_elements(label, s.buffer, s.column + reach_of(in, s));
    }
    const InstructionTraits& traits = traits_of(in);
    if (traits.validate_sizes != nullptr) {
      traits.validate_sizes(*this, in);
    } else if (has_out(traits)) {
      check_elements(label, in.out.buffer, int64_t{in.out.column} + in.out.width);
    }
  }
}

}  // namespace cavs
