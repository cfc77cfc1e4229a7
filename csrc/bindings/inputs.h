// Inputs of an executor from Python, checked: NumPy arrays, features, optimisers.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bindings/fields.h"
#include "exec/executor.h"

namespace py = pybind11;

namespace cavs {

// Run f without the GIL, so that Python continues while a run waits or works.
template <class F>
auto without_gil(F&& f) {
  const py::gil_scoped_release release;
  return f();
}

inline OptimizerRule parse_optimizer(const std::string& s) {
  return parse<OptimizerRule>(s, "optimizer");
}

// A name for messages, made into text only when one is raised.
struct Label {
  const char* name;
  int64_t number = -1;  // none if negative

  std::string text() const {
    return number < 0 ? name : std::string(name) + " " + std::to_string(number);
  }
};

// Pointer to a C-contiguous array of T, not converted: the engine accesses the caller's memory.
template <class T>
T* data_of(const py::array& array, const Label& label, bool write) {
  if (!py::isinstance<py::array_t<T>>(array)) {
    throw py::type_error(label.text() + " is " + std::string(py::str(array.dtype())) + ", needs " +
                         std::string(py::str(py::dtype::of<T>())));
  }
  if (!(array.flags() & py::array::c_style)) {
    throw py::value_error(label.text() + " is not C-contiguous");
  }
  if (write && !array.writeable()) throw py::value_error(label.text() + " is read-only");
  return static_cast<T*>(const_cast<void*>(array.data()));
}

// Options of a step. `kept` holds the arrays that were read, which may leave the caller's lists
// while the GIL is released.
struct StepOptions {
  py::dict optimizer;
  py::list states;
  std::vector<bool> trainable;
  std::optional<double> max_norm;
  std::vector<py::array> kept = {};
};

// Inputs of one run.
struct RunOptions {
  std::shared_ptr<Schedule> schedule;
  py::list floats, ints;
  uint64_t seed, step;
  double scale = 1;
  std::vector<double> totals;
  std::vector<py::array> kept = {};
};

// Arrays as parameters that the executor reads and writes.
template <class T>
std::vector<Parameter<T>> views(const std::vector<py::array>& parameters) {
  std::vector<Parameter<T>> out;
  for (const py::array& parameter : parameters) {
    const Label label{"parameter", static_cast<int64_t>(out.size())};
    out.push_back({data_of<T>(parameter, label, true), parameter.size()});
  }
  return out;
}

// Views of the caller's features.
template <class T>
Inputs<T> to_inputs(RunOptions& options) {
  const py::list& floats = options.floats;
  const py::list& ints = options.ints;
  Inputs<T> inputs;
  inputs.schedule = options.schedule;
  inputs.seed = options.seed;
  inputs.step = options.step;
  inputs.scale = options.scale;
  inputs.totals = options.totals;
  for (size_t i = 0; i < floats.size(); ++i) {
    const Label label{"float feature", static_cast<int64_t>(i)};
    const auto array = floats[i].cast<py::array>();
    if (array.ndim() != 2) {
      throw py::value_error(label.text() + " has " + std::to_string(array.ndim()) +
                            " dimensions, needs 2");
    }
    inputs.float_features.push_back(
        {data_of<T>(array, label, false), array.shape(0), array.shape(1)});
    options.kept.push_back(array);
  }
  for (size_t i = 0; i < ints.size(); ++i) {
    const Label label{"int feature", static_cast<int64_t>(i)};
    const auto array = ints[i].cast<py::array>();
    if (array.ndim() != 1) {
      throw py::value_error(label.text() + " has " + std::to_string(array.ndim()) +
                            " dimensions, needs 1");
    }
    inputs.int_features.push_back({data_of<int32_t>(array, label, false), array.shape(0)});
    options.kept.push_back(array);
  }
  return inputs;
}

// The numbers that a traced rule computes from rate, weight decay and step, for every parameter
// whose scales differ from those of earlier ones.
template <class T>
void read_program(Update<T>& update, const py::object& program, double step) {
  update.program = program.attr("native").cast<std::shared_ptr<UpdateProgram>>();
  std::map<std::pair<double, double>, std::vector<double>> known;
  const auto numbers = [&](const std::pair<double, double>& scales) -> const std::vector<double>& {
    const auto [at, added] = known.try_emplace(scales);
    if (added) {
      const OptimizerStep& s = update.step;
      const py::object found =
          program.attr("scalars")(s.lr * scales.first, s.weight_decay * scales.second, step);
      at->second = found.cast<std::vector<double>>();
    }
    return at->second;
  };
  if (update.scales.empty()) update.numbers.push_back(numbers({1, 1}));
  for (const auto& scales : update.scales) update.numbers.push_back(numbers(scales));
}

// Hyper-parameters, and states checked against the parameters `arrays`.
template <class T>
Update<T> to_update(StepOptions& options, const std::vector<py::array>& arrays) {
  const Fields f(options.optimizer,
                 {"kind", "lr", "momentum", "nesterov", "beta1", "beta2", "eps", "weight_decay",
                  "bias1", "bias2", "scales", "step", "program"});
  Update<T> update;
  OptimizerStep& s = update.step;
  if (!f.has("program")) s.rule = parse_optimizer(f.need<std::string>("kind"));
  s.lr = f.need<double>("lr");
  s.momentum = f.get("momentum", 0.0);
  s.nesterov = f.get("nesterov", false);
  s.beta1 = f.get("beta1", 0.9);
  s.beta2 = f.get("beta2", 0.999);
  s.eps = f.get("eps", 1e-8);
  s.weight_decay = f.get("weight_decay", 0.0);
  s.bias1 = f.get("bias1", 1.0);
  s.bias2 = f.get("bias2", 1.0);
  s.grad_scale = 1;
  update.scales = f.get("scales", std::move(update.scales));
  update.max_norm = options.max_norm;
  update.trainable = options.trainable;
  if (f.has("program")) read_program(update, options.optimizer["program"], f.need<double>("step"));
  const size_t needed = update.program                  ? update.program->states()
                        : s.rule == OptimizerRule::kSgd ? 0
                        : s.rule == OptimizerRule::kAdam || s.rule == OptimizerRule::kAdamW ? 2
                                                                                            : 1;
  for (size_t i = 0; i < options.states.size(); ++i) {
    const auto states = options.states[i].cast<py::list>();
    StateArrays<T> of{};
    const Label label{"state of parameter", static_cast<int64_t>(i)};
    const bool trained = i >= update.trainable.size() || update.trainable[i];
    if (states.size() > of.size() || (trained && states.size() < needed)) {
      throw py::value_error(label.text() + ": " + std::to_string(states.size()) +
                            " arrays, the optimizer needs " + std::to_string(needed));
    }
    for (size_t j = 0; j < states.size(); ++j) {
      const auto array = states[j].cast<py::array>();
      of[j] = data_of<T>(array, label, true);
      options.kept.push_back(array);
      if (i < arrays.size() && array.size() != arrays[i].size()) {
        throw py::value_error(label.text() + " has " + std::to_string(array.size()) +
                              " elements, the parameter " + std::to_string(arrays[i].size()));
      }
    }
    update.states.push_back(of);
  }
  return update;
}

}  // namespace cavs
