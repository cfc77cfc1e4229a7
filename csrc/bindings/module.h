#pragma once

#include <pybind11/pybind11.h>

namespace cavs {
void bind_errors(pybind11::module_& m);      // errors.cc: classes of cavs.errors
void bind_kernels(pybind11::module_& m);     // kernels.cc: isa(), kernels on numpy arrays
void bind_graph(pybind11::module_& m);       // graph.cc: Graph, GraphBatch, Schedule
void bind_policies(pybind11::module_& m);    // policies.cc: policies of batching
void bind_samples(pybind11::module_& m);     // samples.cc: graphs with features
void bind_structures(pybind11::module_& m);  // structures.cc: samples of several structures
void bind_program(pybind11::module_& m);     // program.cc: Program; calls bind_executor
void bind_executor(pybind11::module_& m);    // executor.cc: Executor, threads
}  // namespace cavs
