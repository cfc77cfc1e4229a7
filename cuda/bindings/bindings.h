// What the parts of the module cavs._cuda share.
#pragma once

#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/inputs.h"
#include "cuda/executor/executor.h"

namespace cavs::cuda {

// Parameters of either precision, with the kernels that work on it and the arrays of the host.
struct PyParameters {
  std::shared_ptr<Device> device;
  std::vector<py::array> arrays;
  bool deterministic = false;
  std::variant<std::pair<std::shared_ptr<Library<float>>, std::shared_ptr<Parameters<float>>>,
               std::pair<std::shared_ptr<Library<double>>, std::shared_ptr<Parameters<double>>>>
      of;
};

using AnyExecutor =
    std::variant<std::unique_ptr<Executor<float>>, std::unique_ptr<Executor<double>>>;

struct PyExecutor {
  std::shared_ptr<PyParameters> parameters;
  AnyExecutor of;
  template <class F>
  auto visit(F&& f) {
    return std::visit([&](auto& e) { return f(*e); }, of);
  }
};

// Python's list, alive until the last copy of the pointer goes, on whatever thread that is.
inline std::shared_ptr<const void> kept(const py::list& list) {
  return {new py::list(list), [](const py::list* held) {
            const py::gil_scoped_acquire hold;
            delete held;
          }};
}

// A step in parts.
void bind_parts(py::class_<PyExecutor>& type);

// Replays: what a report says of them, and a warning where there are none for a reason.
py::dict to_dict(const Replays::Report& r);
void tell(const std::string& trouble);

}  // namespace cavs::cuda
