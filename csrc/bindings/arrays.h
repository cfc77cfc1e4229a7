// Index arrays of the engine as NumPy arrays.
#pragma once

#include <pybind11/numpy.h>

#include <memory>
#include <utility>

#include "base/pooled_vector.h"

namespace cavs {

template <class T>
pybind11::array owned(PooledVector<T> values) {
  namespace py = pybind11;
  auto kept = std::make_unique<PooledVector<T>>(std::move(values));
  const auto* data = kept->data();
  const auto size = static_cast<py::ssize_t>(kept->size());
  const py::capsule owner(kept.release(), [](void* p) { delete static_cast<PooledVector<T>*>(p); });
  return py::array_t<T>(size, data, owner);
}

}  // namespace cavs
