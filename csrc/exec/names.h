// Names of enumerators, as programs in Python, error messages and reports write them.
#pragma once

#include <iterator>

#include "exec/program.h"

namespace cavs {

// Names<E>::all holds the names in the order of the enumerators.
template <class E>
struct Names;

template <>
struct Names<Role> {
  static constexpr const char* all[] = {"arena",   "scratch", "param", "grad",
                                        "feature", "ones",    "count"};
  static constexpr Role last = Role::kCount;
};
template <>
struct Names<OptimizerRule> {
  static constexpr const char* all[] = {"sgd", "momentum", "adagrad", "adam", "adamw"};
  static constexpr OptimizerRule last = OptimizerRule::kAdamW;
};
template <>
struct Names<Held> {
  static constexpr const char* all[] = {"all", "inner", "leaves"};
  static constexpr Held last = Held::kLeaves;
};
template <>
struct Names<RowMap> {
  static constexpr const char* all[] = {"self", "one", "index", "segment_sum"};
  static constexpr RowMap last = RowMap::kSegmentSum;
};
template <>
struct Names<StoreMode> {
  static constexpr const char* all[] = {"write", "sum", "max"};
  static constexpr StoreMode last = StoreMode::kMax;
};
template <>
struct Names<StageType> {
  static constexpr const char* all[] = {"rows", "loop", "global"};
  static constexpr StageType last = StageType::kGlobal;
};
template <>
struct Names<Array> {
  static constexpr const char* all[] = {
      "none",        "order",        "edge_order",    "child",       "parent",
      "nth_child",   "nth_edge",     "parent_if_nth", "graph_of",    "index_feature",
      "children",    "edges",        "out",           "graph_rows",  "nth_parents",
      "nth_leaf",    "present",      "present_order", "place",       "graph_roots",
      "row_graphs",  "root_graphs",  "graph_leaves",  "leaf_graphs", "parents",
      "linked",      "linked_rows",  "link_readers",  "pairs",       "pair_target",
      "pair_source", "source_pairs", "pair_order",    "distinct"};
  static constexpr Array last = Array::kDistinct;
};
template <>
struct Names<InstructionType> {
#define CAVS_NAME(enumerator, name) #name,
  static constexpr const char* all[] = {CAVS_INSTRUCTIONS(CAVS_NAME)};
#undef CAVS_NAME
  static constexpr auto last = static_cast<InstructionType>(kNumInstructions - 1);
};

template <class E>
constexpr const char* name_of(E e) {
  using All = Names<E>;
  static_assert(std::size(All::all) == static_cast<size_t>(All::last) + 1);
  return All::all[static_cast<size_t>(e)];
}

}  // namespace cavs
