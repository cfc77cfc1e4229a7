// Exceptions of the engine that have a class of their own in cavs.errors.
#include <pybind11/pybind11.h>

#include "base/config_error.h"
#include "bindings/module.h"
#include "exec/executor.h"
#include "graph/graph.h"

namespace py = pybind11;

namespace cavs {
namespace {

py::object error_class(const char* name) { return py::module_::import("cavs.errors").attr(name); }

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const GraphError& error) {
    const py::object type = error_class("GraphError"), value = type(error.what());
    value.attr("vertex") = error.vertex;
    PyErr_SetObject(type.ptr(), value.ptr());
  } catch (const ConfigError& error) {
    const py::object type = error_class("ConfigError");
    const py::object value = type(error.what(), py::arg("hint") = error.hint);
    PyErr_SetObject(type.ptr(), value.ptr());
  }
}

}  // namespace

void bind_errors(py::module_& m) {
  py::register_local_exception_translator(translate);
  py::register_local_exception<Abandoned>(m, "Abandoned").doc() =
      "Raised by a run that another thread has abandoned.";
}

}  // namespace cavs
