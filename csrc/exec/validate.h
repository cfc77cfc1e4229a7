// Validation of programs before they run, so that an invalid one is an error and never a wild
// pointer.
#pragma once

#include <vector>

#include "exec/program.h"

namespace cavs {

// Check ids, widths, spaces and lifetimes. Throws std::invalid_argument naming the label of the
// instruction.
void validate(const Program& program);
// Check that parameters of these sizes (in elements) fit the program.
void validate_parameters(const Program& program, const std::vector<int64_t>& sizes);

}  // namespace cavs
