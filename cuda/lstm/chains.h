// A batch of chains as libraries take sequences: the longest first, step by step.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/schedule.h"

namespace cavs::cuda {

struct Chains {
  std::vector<int32_t> lengths;  // of the sequences, none of them shorter than the next
  // A place is where a row stands among those of all sequences: first vertices of all sequences,
  // then second ones of those that have any, ..., each time in the order of `lengths`.
  std::vector<int32_t> row_of, place_of;  // of each place its row, and the reverse

  int32_t places() const { return static_cast<int32_t>(row_of.size()); }
  int32_t longest() const { return lengths.empty() ? 0 : lengths.front(); }
  bool fixed() const { return lengths.empty() || lengths.front() == lengths.back(); }
};

// Every vertex without children starts a sequence, which goes on with its parent. Throws
// std::invalid_argument if a vertex has more than one child or parent.
Chains make_chains(const Schedule& schedule);

}  // namespace cavs::cuda
