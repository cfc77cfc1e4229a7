// Location of packed weights: a weight that is a window of another is read from the packed whole.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/plan.h"

namespace cavs {

// A weight starts at (row, column) of the packed matrix of `weight`: itself, or one that contains
// it.
struct PackedAt {
  int32_t weight;
  int64_t row, column;
};

// Locate every weight; columns are multiples of `panel`, rows of `depth`.
std::vector<PackedAt> locate_weights(const std::vector<Weight>& weights, int64_t panel,
                                     int64_t depth);

// Return for each weight whether a plan reads its packed memory.
std::vector<bool> packed_by_plan(const Program& program, const Analysis& analysis,
                                 const std::vector<PackedAt>& packed_at, const Plan& plan);

}  // namespace cavs
