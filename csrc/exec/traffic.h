// What the instructions of a program compute, read and write in a batch.
#pragma once

#include <vector>

#include "exec/executor.h"

namespace cavs {

// Label and kind of an instruction; of a batch (`schedule`, else null) its operations and bytes
// too.
template <class T>
Report::Line traffic(const Program& program, int32_t instruction, const BoundProgram<T>& bound,
                     const Spaces& spaces, const Schedule* schedule, const IndexFeatures& features,
                     const std::vector<Table>& tables);

}  // namespace cavs
