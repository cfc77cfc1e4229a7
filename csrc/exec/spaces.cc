// Names of spaces, arrays, instructions and roles, for errors and reports.
#include "exec/spaces.h"

namespace cavs {

std::string space_name(Space s) {
  static const char* const kNames[] = {"one", "graph", "vertex", "edge"};
  if (is_present(s)) return "present " + std::to_string(feature_of(s));
  if (s < 0) return "space " + std::to_string(s);
  if (s < kVertexKind0) return kNames[s];
  return std::string(is_vertex(s) ? "vertex" : "edge") + " kind " + std::to_string(kind_of(s));
}
const char* array_name(Array a) {
  static const char* const kNames[] = {
      "none",       "order",       "edge_order",    "child",       "parent",
      "nth_child",  "nth_edge",    "parent_if_nth", "graph_of",    "index_feature",
      "children",   "edges",       "out",           "graph_rows",  "nth_parents",
      "nth_leaf",   "present",     "present_order", "place",       "graph_roots",
      "row_graphs", "root_graphs", "graph_leaves",  "leaf_graphs", "parents"};
  return kNames[static_cast<int>(a)];
}
const char* instruction_name(InstructionKind k) {
  static const char* const kNames[] = {"matmul",
                                       "map",
                                       "segment_max",
                                       "cross_entropy",
                                       "cross_entropy_grad",
                                       "copy",
                                       "matmul_tn",
                                       "sum_rows",
                                       "lookup_grad",
                                       "lstm",
                                       "lstm_grad",
                                       "lstm_weight_grad"};
  return kNames[static_cast<int>(k)];
}
const char* held_name(Held h) {
  static const char* const kNames[] = {"all", "inner", "leaves"};
  return kNames[static_cast<int>(h)];
}
std::string rows_name(const Buffer& b) {
  return space_name(b.space) + (b.held == Held::kAll ? "" : std::string(" ") + held_name(b.held));
}
const char* role_name(Role r) {
  static const char* const kNames[] = {"arena",   "scratch", "param", "grad",
                                       "feature", "ones",    "count"};
  return kNames[static_cast<int>(r)];
}

}  // namespace cavs
