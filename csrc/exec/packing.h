// Where packed weights lie: part of a matrix is read out of the whole, which is packed once.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/program.h"

namespace cavs {

// A weight starts at (row, column) of the packed matrix of `weight`: itself, or one that holds it.
struct PackedAt {
  int32_t weight;
  int64_t row, column;
};

// For every weight; columns are multiples of `panel`, rows of `depth`.
std::vector<PackedAt> place_weights(const std::vector<Weight>& weights, int64_t panel,
                                    int64_t depth);

}  // namespace cavs
