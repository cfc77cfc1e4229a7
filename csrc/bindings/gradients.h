// Results in Python: outputs, the gradients of a split step as NumPy views of the engine's memory,
// and pieces of gradients that come back.
#pragma once

#include <pybind11/numpy.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/inputs.h"

namespace cavs {

// A view of memory that `owner` keeps alive.
template <class T>
py::array_t<T> array_of(T* data, std::vector<py::ssize_t> shape, const py::object& owner) {
  return py::array_t<T>(std::move(shape), data, owner);
}

// An owner for arrays of shared memory.
inline py::capsule owner_of(std::shared_ptr<const void> memory) {
  using Shared = std::shared_ptr<const void>;
  auto kept = std::make_unique<Shared>(std::move(memory));
  py::capsule owner(kept.get(), [](void* p) { delete static_cast<Shared*>(p); });
  kept.release();
  return owner;
}

template <class T>
py::array_t<T> to_array(Output<T> output) {
  T* const values = output.values.get();
  return array_of(values, {output.rows, output.width}, owner_of(std::move(output.values)));
}

// (rows or None, values).
template <class T>
py::tuple to_tuple(const GradientView<T>& view, const py::object& owner) {
  if (!view.sparse) return py::make_tuple(py::none(), array_of(view.values, {view.count}, owner));
  const py::array_t<int32_t> rows(static_cast<py::ssize_t>(view.count), view.rows);  // a copy
  return py::make_tuple(rows, array_of(view.values, {view.count, view.width}, owner));
}

// Read tuples (parameter, values, rows or None, stride, offset); values have one axis, or two if
// rows of them are rows of the parameter. A number instead of values is the number of elements of
// `there`. The caller keeps the pieces as a tuple: a list may change while the GIL is released.
template <class T, class F>
std::vector<GradientPiece<T>> to_pieces(const py::tuple& pieces, F&& there) {
  std::vector<GradientPiece<T>> out;
  for (const py::handle& item : pieces) {
    const auto t = item.cast<py::tuple>();
    if (py::isinstance<py::int_>(t[1])) {
      const auto param = t[0].cast<int32_t>();
      const auto offset = t[4].cast<int64_t>();
      out.push_back({param, there(param) + offset, nullptr, t[1].cast<int64_t>(), 1, 1, offset});
      continue;
    }
    const auto values = t[1].cast<py::array>();
    GradientPiece<T> p{};
    p.param = t[0].cast<int32_t>();
    p.values = data_of<T>(values, {"gradient of parameter", p.param}, false);
    p.count = values.ndim() == 0 ? 1 : values.shape(0);
    p.width = p.count == 0 ? 1 : values.size() / p.count;
    p.stride = t[3].is_none() ? p.width : t[3].cast<int64_t>();
    p.offset = t[4].cast<int64_t>();
    if (!t[2].is_none()) {
      const auto rows = t[2].cast<py::array>();
      p.rows = data_of<int32_t>(rows, {"rows of parameter", p.param}, false);
      if (rows.size() != p.count) {
        throw py::value_error(std::to_string(rows.size()) + " rows for " + std::to_string(p.count) +
                              " rows of values");
      }
    }
    out.push_back(p);
  }
  return out;
}

template <class T>
std::vector<GradientPiece<T>> to_pieces(const py::tuple& pieces) {
  return to_pieces<T>(pieces, [](int32_t param) -> T* {
    throw py::type_error("gradient of parameter " + std::to_string(param) + " is no array");
  });
}

}  // namespace cavs
