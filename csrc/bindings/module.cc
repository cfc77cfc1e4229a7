// The engine as module cavs._engine. Only the files of this folder know Python; each exposes one
// part and stays thin.
#include "bindings/module.h"

PYBIND11_MODULE(_engine, m) {
  m.doc() = "The cavs engine: graphs, schedules, kernels, programs.";
  cavs::bind_errors(m);
  cavs::bind_kernels(m);
  cavs::bind_graph(m);
  cavs::bind_samples(m);
  cavs::bind_structures(m);
  cavs::bind_program(m);
}
