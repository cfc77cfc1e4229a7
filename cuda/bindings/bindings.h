// Types and functions shared by the files of the module cavs._cuda.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/inputs.h"
#include "cuda/driver/context.h"
#include "cuda/executor/executor.h"

namespace cavs::cuda {

// Parameters of either precision, with the kernels for it and the arrays of the host.
struct PyParameters {
  std::shared_ptr<Device> device;
  std::vector<py::array> arrays;
  bool deterministic = false;
  py::object compile;  // a function: traced rule -> image of its kernel
  std::variant<
      std::pair<std::shared_ptr<KernelLibrary<float>>, std::shared_ptr<Parameters<float>>>,
      std::pair<std::shared_ptr<KernelLibrary<double>>, std::shared_ptr<Parameters<double>>>>
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

// Load the kernel of the optimiser's rule, if it is traced and used for the first time.
inline void load_program(PyParameters& parameters, const py::dict& optimizer) {
  if (!optimizer.contains("program") || optimizer["program"].is_none()) return;
  const py::object program = optimizer["program"];
  const auto key = program.attr("key").cast<std::string>();
  std::visit(
      [&](auto& of) {
        if (of.first->has_program(key)) return;
        const std::string image = parameters.compile(program).template cast<py::bytes>();
        without_gil([&] {
          const DeviceLock lock(*parameters.device);
          of.first->add_program(key, image);
        });
      },
      parameters.of);
}

// Keep a Python list alive until the last copy of the pointer is gone, on whatever thread that is.
inline std::shared_ptr<const void> keep_alive(const py::list& list) {
  return {new py::list(list), [](const py::list* held) {
            const py::gil_scoped_acquire hold;
            delete held;
          }};
}

// The split step: gradients between a run and its update.
void bind_split_step(py::class_<PyExecutor>& type);

// The report of the replay cache, and a warning if it has stopped replaying.
py::dict to_dict(const ReplayCache::Report& r);
void warn_of_replay(const std::string& trouble);

}  // namespace cavs::cuda
