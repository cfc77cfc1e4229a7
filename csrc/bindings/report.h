// What an executor counted, as Python sees it.
#pragma once

#include <pybind11/pybind11.h>

#include "exec/executor.h"

namespace cavs {
pybind11::dict to_dict(const Report& report);
}
