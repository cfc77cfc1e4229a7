// Instruction sets by name; kernels.h has the kernel table.
#pragma once

#include <string>
#include <vector>

#include "kernels/isa_table.h"

namespace cavs {

// Instruction sets that this build has and this machine runs, best last.
std::vector<std::string> supported_isas();

// Throws ConfigError unless `isa` is one of supported_isas().
template <class T>
const IsaTable<T>& isa_table(const std::string& isa);

// "float32", "int16", "bfloat16x3" and "bfloat16"; throws ConfigError for other names.
const char* name_of(Products products);
Products products_named(const std::string& name);

// Measure the rate of multiply-adds of a table, the ceiling of its products. A thousand iterations
// take some microseconds; other work on the machine disturbs the measurement.
template <class T>
double multiply_adds_per_second(const IsaTable<T>& table, int64_t iterations);

// AVX-512 tables with products of narrow numbers, the faster unit first; empty if the machine, the
// system or CAVS_ISA rules them out.
const std::vector<IsaTable<float>>& narrow_tables();

}  // namespace cavs
