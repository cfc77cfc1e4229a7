#pragma once

#include <pybind11/pybind11.h>

namespace cavs {
void bind_kernels(pybind11::module_& m);  // kernels.cc: isa(), kernels on numpy arrays
void bind_graph(pybind11::module_& m);    // graph.cc: Graph, GraphBatch, Schedule
void bind_program(pybind11::module_& m);  // program.cc: Program, Executor, threads
}  // namespace cavs
