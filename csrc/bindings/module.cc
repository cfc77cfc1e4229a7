// The engine as cavs._engine. The files of this folder are the only ones that know Python; each
// exposes one part and stays thin.
#include "bindings/module.h"

PYBIND11_MODULE(_engine, m) {
  m.doc() = "The cavs engine: graphs, schedules, kernels, programs.";
  cavs::bind_errors(m);
  cavs::bind_kernels(m);
  cavs::bind_graph(m);
  cavs::bind_samples(m);
  cavs::bind_program(m);
}
