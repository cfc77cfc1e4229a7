// Checks of a program before it runs, so that a wrong one is an error and never a wild pointer.
#pragma once

#include <vector>

#include "exec/program.h"

namespace cavs {

// Ids, widths, spaces, lifetimes. Throws std::invalid_argument naming the instruction's label.
void validate(const Program& program);
// That parameters of these sizes (elements) fit the program.
void validate_parameters(const Program& program, const std::vector<int64_t>& sizes);

}  // namespace cavs
