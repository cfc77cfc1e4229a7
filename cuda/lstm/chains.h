// A batch of chains in the layout of sequence libraries: longest first, time step by time step.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/schedule.h"

namespace cavs::cuda {

struct Chains {
  std::vector<int32_t> lengths;  // descending
  // Positions count the rows of the packed layout: the first vertices of all sequences, then the
  // second vertices of those that have one, and so on, each time in the order of `lengths`.
  std::vector<int32_t> row_of, position_of;  // position -> row, row -> position

  int32_t positions() const { return static_cast<int32_t>(row_of.size()); }
  int32_t longest() const { return lengths.empty() ? 0 : lengths.front(); }
  bool fixed() const { return lengths.empty() || lengths.front() == lengths.back(); }
};

// Each vertex without children starts a sequence, which continues with its parent. Throws
// std::invalid_argument if a vertex has more than one child or parent.
Chains make_chains(const Schedule& schedule);

}  // namespace cavs::cuda
