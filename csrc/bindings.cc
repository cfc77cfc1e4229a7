// The only file that knows Python: exposes the engine as cavs._engine.
#include <pybind11/pybind11.h>

PYBIND11_MODULE(_engine, m) { m.doc() = "cavs engine"; }
