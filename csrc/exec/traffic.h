// Reads, writes and floating-point operations of the instructions of a program in a batch.
#pragma once

#include <vector>

#include "exec/executor.h"

namespace cavs {

// Label and kind of an instruction and, given a batch (`schedule`, else null), its operations and
// bytes. `element` is the size of a number.
Report::Line report_line(const Program& program, int32_t instruction, size_t element,
                         const Spaces& spaces, const Schedule* schedule,
                         const IndexFeatures& features, const std::vector<Table>& tables);

}  // namespace cavs
