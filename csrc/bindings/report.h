// Counters of an executor in Python.
#pragma once

#include <pybind11/pybind11.h>

#include "exec/executor.h"

namespace cavs {
pybind11::dict to_dict(const Report& report);
}
