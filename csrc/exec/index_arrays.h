// The index arrays and segments through which operands read rows of other spaces.
#pragma once

#include <cstdint>
#include <span>

#include "exec/bind.h"
#include "schedule/schedule.h"

namespace cavs {

// The index array or segments that an operand of an instruction over `space` names.
struct IndexArrays {
  std::span<const int32_t> index, offsets;
};
IndexArrays segments_of(const Operand& o,
                        const Schedule& schedule);  // empty if it names no segments
IndexArrays index_arrays(const Operand& o, Space space, const Schedule& schedule,
                         const IndexFeatures& features);
// The array of the caller's numbers of the vertices, edges or pairs in a space, which random
// numbers are a function of; kNone where rows have these numbers themselves.
Operand numbers_of_rows(Space space);

}  // namespace cavs
