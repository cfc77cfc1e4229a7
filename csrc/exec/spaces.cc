#include "exec/spaces.h"

#include <algorithm>
#include <stdexcept>

#include "exec/names.h"

namespace cavs {

std::string space_name(Space s) {
  static const char* const kNames[] = {"one", "graph", "vertex", "edge"};
  if (is_distinct(s)) return "distinct " + std::to_string(feature_of(s));
  if (is_present(s)) return "present " + std::to_string(feature_of(s));
  if (s < 0) return "space " + std::to_string(s);
  if (s < kVertexKind0) return kNames[s];
  if (is_pairs(s)) {
    const std::string kind = kind_of(s) < 0 ? "" : " kind " + std::to_string(kind_of(s));
    return "pairs of link " + std::to_string(link_number(s)) + kind;
  }
  if (is_structure(s)) {
    return std::string(is_vertex(s) ? "vertex" : "edge") + " structure " +
           std::to_string((s - kVertexStructure0) / 2);
  }
  return std::string(is_vertex(s) ? "vertex" : "edge") + " kind " + std::to_string(kind_of(s));
}
std::string rows_name(const Buffer& b) {
  return space_name(b.space) + (b.held == Held::kAll ? "" : std::string(" ") + name_of(b.held));
}

namespace {

// Offsets of the pairs of links whose pairs the program computes, which the schedule derives.
void resolve_relations(const Program& program, const Schedule& schedule, Spaces& spaces) {
  spaces.targets.clear();
  spaces.offsets.assign(1 + program.links.size(), nullptr);
  spaces.offsets[kEdges] = schedule.edge_offsets.data();
  for (const LinkType& link : program.links) spaces.targets.push_back(link.target);
  for (const Instruction& in : program.instructions) {
    if (!is_pairs(in.space) || spaces.offsets[relation_of(in.space)] != nullptr) continue;
    spaces.offsets[relation_of(in.space)] = schedule.linked_rows(link_number(in.space));
  }
}

}  // namespace

void resolve_spaces(const Program& program, const Schedule& schedule, const SelectedRows& selected,
                    Spaces& spaces) {
  const GraphBatch& batch = *schedule.batch;
  if (batch.num_structures != program.structures) {
    throw std::invalid_argument("the batch has " + std::to_string(batch.num_structures) +
                                " structures a sample, the program reads " +
                                std::to_string(program.structures));
  }
  for (size_t l = 0; l < program.links.size(); ++l) {
    if (l < batch.links.size() &&
        LinkType{batch.links[l].target, batch.links[l].source} == program.links[l]) {
      continue;
    }
    throw std::invalid_argument("link " + std::to_string(l) + " of the program is not among the " +
                                std::to_string(batch.links.size()) + " of the batch");
  }
  const auto kinds = static_cast<int32_t>(program.kinds.size());
  const auto vertices = static_cast<int32_t>(schedule.order.size());
  const auto edges = static_cast<int32_t>(schedule.edge_order.size());
  spaces.ranges.assign(kVertexKind0 + 2 * kinds, RowRange{});
  spaces.ranges[kOneSpace] = {0, 1};
  spaces.ranges[kGraphSpace] = {0, schedule.num_graphs()};
  spaces.ranges[kVertexSpace] = {0, vertices};
  spaces.ranges[kEdgeSpace] = {0, edges};
  spaces.selected = selected;
  spaces.kinds.assign(schedule.kinds.size(), -1);
  resolve_relations(program, schedule, spaces);
  spaces.structures.clear();
  spaces.held.clear();
  for (int32_t s = 0; s < program.structures; ++s) {
    const RowRange rows = schedule.rows_of(s);
    spaces.structures.insert(spaces.structures.end(), {rows, schedule.edges_of(s)});
    spaces.held.push_back({rows, RowRange{rows.begin, rows.begin}, rows});
  }
  for (size_t i = 0; i < schedule.kinds.size(); ++i) {
    const Kind& kind = schedule.kinds[i];
    const auto at = std::find(program.kinds.begin(), program.kinds.end(), kind.key);
    if (at == program.kinds.end()) {
      throw std::runtime_error("kind " + std::to_string(kind.key) + " not compiled: " +
                               std::to_string(kind.rows.size()) + " vertices of it in the batch, " +
                               std::to_string(kinds) + " other kinds in the program");
    }
    spaces.kinds[i] = static_cast<int32_t>(at - program.kinds.begin());
    spaces.ranges[kVertexKind0 + 2 * spaces.kinds[i]] = kind.rows;
    spaces.ranges[kEdgeKind0 + 2 * spaces.kinds[i]] = kind.edges;
    if (kind.key % 2 == 0) continue;
    auto& held = spaces.held[structure_of(kind.key)];
    held[static_cast<int>(Held::kInner)].end = kind.rows.end;
    held[static_cast<int>(Held::kLeaves)].begin = kind.rows.end;
  }
}

}  // namespace cavs
