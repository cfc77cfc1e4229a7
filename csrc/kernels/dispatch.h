// Instruction sets by name; kernels.h has the table everybody uses.
#pragma once

#include <string>
#include <vector>

#include "kernels/isa_table.h"

namespace cavs {

// Those built in that this machine runs, best last.
std::vector<std::string> supported_isas();

// Throws ConfigError unless `isa` is one of supported_isas().
template <class T>
const IsaTable<T>& isa_table(const std::string& isa);

// The best table with products on the matrix unit; null where the machine, the system or CAVS_ISA
// has none.
const IsaTable<float>* matrix_unit_table();

}  // namespace cavs
