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

// "float32", "int16", "bfloat16x3" and "bfloat16"; throws ConfigError for other names.
const char* name_of(Products products);
Products products_named(const std::string& name);

// How fast the table's multiply-adds are: the ceiling of its products. Takes some microseconds a
// thousand iterations; other work disturbs it.
template <class T>
double multiply_adds_per_second(const IsaTable<T>& table, int64_t iterations);

// The table of AVX-512 with products of narrow numbers instead, those of the faster unit first;
// none where the machine, the system or CAVS_ISA has none.
const std::vector<IsaTable<float>>& narrow_tables();

}  // namespace cavs
