// An executor as Python sees it: NumPy arrays in, the engine's memory out.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "bindings/fields.h"
#include "exec/executor.h"

namespace py = pybind11;

namespace cavs {

inline OptimizerKind parse_optimizer(const std::string& s) {
  return parse<OptimizerKind>(s, {"sgd", "momentum", "adagrad", "adam", "adamw"}, "optimizer");
}

// A C-contiguous array of T, not converted: the engine reads (or writes) the caller's memory.
template <class T>
T* data_of(const py::array& array, const std::string& name, bool write) {
  if (!py::isinstance<py::array_t<T>>(array)) {
    throw py::type_error(name + " is " + std::string(py::str(array.dtype())) + ", needs " +
                         std::string(py::str(py::dtype::of<T>())));
  }
  if (!(array.flags() & py::array::c_style)) {
    throw py::value_error(name + " is not C-contiguous");
  }
  if (write && !array.writeable()) throw py::value_error(name + " is read-only");
  return static_cast<T*>(const_cast<void*>(array.data()));
}

struct StepOptions {
  py::dict optimizer;
  py::list states;
  std::vector<bool> trainable;
  std::optional<double> max_norm;
};

// What a program reads in one run.
struct RunOptions {
  std::shared_ptr<Schedule> schedule;
  py::list floats, ints;
  uint64_t seed, step;
  double scale = 1;
  std::vector<double> totals;
};

// An executor of either precision; holds the parameter arrays.
template <class T>
class Engine {
 public:
  Engine(std::shared_ptr<const Program> program, const std::vector<py::array>& parameters)
      : arrays_(parameters), executor_(std::move(program), views(parameters)) {}

  double run(const RunOptions& options) {
    const Inputs<T> inputs = to_inputs(options);
    const py::gil_scoped_release release;
    return executor_.run(inputs);
  }

  std::pair<double, double> step(const RunOptions& run, const StepOptions& options) {
    const Inputs<T> inputs = to_inputs(run);
    const Update<T> update = to_update(options);
    const py::gil_scoped_release release;
    const StepResult result = executor_.step(inputs, update);
    return {result.loss, result.grad_norm};
  }

  py::array gradient(int32_t param) const {
    if (param < 0 || param >= static_cast<int32_t>(arrays_.size())) {
      throw py::index_error("parameter " + std::to_string(param) + " of " +
                            std::to_string(arrays_.size()));
    }
    const py::array& like = arrays_[param];
    py::array_t<T> out(std::vector<py::ssize_t>(like.shape(), like.shape() + like.ndim()));
    executor_.gradient(param, out.mutable_data());
    return out;
  }

  py::object gradient_rows(int32_t param) const {
    const auto rows = executor_.gradient_rows(param);
    if (!rows) return py::none();
    const auto n = static_cast<py::ssize_t>(rows->first.size());
    const auto width = n == 0 ? 0 : static_cast<py::ssize_t>(rows->second.size()) / n;
    return py::make_tuple(py::array_t<int32_t>(n, rows->first.data()),
                          py::array_t<T>({n, width}, rows->second.data()));
  }

  py::array output(int32_t buffer) const {
    const auto [rows, width] = executor_.output_shape(buffer);
    py::array_t<T> out({rows, width});
    executor_.output(buffer, out.mutable_data());
    return out;
  }

  bool wait_gradient(int32_t param) const {
    const py::gil_scoped_release release;
    return executor_.wait_gradient(param);
  }

  // (rows or None, values), of the engine's memory; `owner` keeps it alive.
  py::tuple gradient_view(int32_t param, const py::object& owner) {
    const GradientView<T> view = executor_.gradient_view(param);
    using Shape = std::vector<py::ssize_t>;
    if (!view.sparse) {
      return py::make_tuple(py::none(), py::array_t<T>(Shape{view.count}, view.values, owner));
    }
    py::array_t<int32_t> rows(Shape{view.count}, view.rows, owner);
    rows.attr("flags").attr("writeable") = false;
    return py::make_tuple(rows, py::array_t<T>(Shape{view.count, view.width}, view.values, owner));
  }

  // All dense gradients, in gradient_order, with gaps between them.
  py::array gradient_block(const py::object& owner) {
    const auto [data, size] = executor_.gradient_block();
    return py::array_t<T>(std::vector<py::ssize_t>{size}, data, owner);
  }

  py::tuple factors(int32_t param, const py::object& owner) {
    const Factors& f = executor_.factors(param);
    using Shape = std::vector<py::ssize_t>;
    return py::make_tuple(py::array_t<T>(Shape{f.rows, f.k}, f.left.template as<T>(), owner),
                          py::array_t<T>(Shape{f.rows, f.n}, f.right.template as<T>(), owner));
  }

  void add_product(const py::array& left, const py::array& right, const py::array& out) const {
    if (left.ndim() != 2 || right.ndim() != 2 || left.shape(0) != right.shape(0) ||
        out.size() != left.shape(1) * right.shape(1)) {
      throw py::value_error("left and right need as many rows, out the product of their columns");
    }
    const T* a = data_of<T>(left, "left", false);
    const T* b = data_of<T>(right, "right", false);
    T* c = data_of<T>(out, "out", true);
    const py::ssize_t rows = left.shape(0), k = left.shape(1), n = right.shape(1);
    const py::gil_scoped_release release;
    executor_.add_product(a, b, rows, k, n, c);
  }

  double squared_norm(const py::list& pieces) {
    const std::vector<GradientPiece<T>> work = to_pieces(pieces);
    const py::gil_scoped_release release;
    return executor_.squared_norm(work);
  }

  void apply(const py::list& pieces, const StepOptions& options, double scale) {
    const std::vector<GradientPiece<T>> work = to_pieces(pieces);
    const Update<T> update = to_update(options);
    const py::gil_scoped_release release;
    executor_.apply(update, work, scale);
  }

  Executor<T>& executor() { return executor_; }

 private:
  static std::vector<Parameter<T>> views(const std::vector<py::array>& parameters) {
    std::vector<Parameter<T>> out;
    for (size_t i = 0; i < parameters.size(); ++i) {
      out.push_back({data_of<T>(parameters[i], "parameter " + std::to_string(i), true),
                     parameters[i].size()});
    }
    return out;
  }

  // Tuples (parameter, values, rows or None, stride, offset); values have one axis, or two where
  // rows of them are rows of the parameter.
  static std::vector<GradientPiece<T>> to_pieces(const py::list& pieces) {
    std::vector<GradientPiece<T>> out;
    for (const py::handle& item : pieces) {
      const auto t = item.cast<py::tuple>();
      const auto values = t[1].cast<py::array>();
      GradientPiece<T> p{};
      p.param = t[0].cast<int32_t>();
      p.values = data_of<T>(values, "gradient of parameter " + std::to_string(p.param), false);
      p.count = values.ndim() == 0 ? 1 : values.shape(0);
      p.width = p.count == 0 ? 1 : values.size() / p.count;
      p.stride = t[3].is_none() ? p.width : t[3].cast<int64_t>();
      p.offset = t[4].cast<int64_t>();
      if (!t[2].is_none()) {
        const auto rows = t[2].cast<py::array>();
        p.rows = data_of<int32_t>(rows, "rows of parameter " + std::to_string(p.param), false);
        if (rows.size() != p.count) {
          throw py::value_error(std::to_string(rows.size()) + " rows for " +
                                std::to_string(p.count) + " rows of values");
        }
      }
      out.push_back(p);
    }
    return out;
  }

  static Inputs<T> to_inputs(const RunOptions& options) {
    const py::list& floats = options.floats;
    const py::list& ints = options.ints;
    Inputs<T> inputs;
    inputs.schedule = options.schedule;
    inputs.seed = options.seed;
    inputs.step = options.step;
    inputs.scale = options.scale;
    inputs.totals = options.totals;
    for (size_t i = 0; i < floats.size(); ++i) {
      const std::string name = "float feature " + std::to_string(i);
      const auto array = floats[i].cast<py::array>();
      if (array.ndim() != 2) {
        throw py::value_error(name + " has " + std::to_string(array.ndim()) +
                              " dimensions, needs 2");
      }
      inputs.float_features.push_back(
          {data_of<T>(array, name, false), array.shape(0), array.shape(1)});
    }
    for (size_t i = 0; i < ints.size(); ++i) {
      const std::string name = "int feature " + std::to_string(i);
      const auto array = ints[i].cast<py::array>();
      if (array.ndim() != 1) {
        throw py::value_error(name + " has " + std::to_string(array.ndim()) +
                              " dimensions, needs 1");
      }
      inputs.int_features.push_back({data_of<int32_t>(array, name, false), array.shape(0)});
    }
    return inputs;
  }

  Update<T> to_update(const StepOptions& options) const {
    const Fields f(options.optimizer, {"kind", "lr", "momentum", "nesterov", "beta1", "beta2",
                                       "eps", "weight_decay", "bias1", "bias2"});
    Update<T> update;
    OptimizerStep& s = update.step;
    s.kind = parse_optimizer(f.need<std::string>("kind"));
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
    update.max_norm = options.max_norm;
    update.trainable = options.trainable;
    const size_t needed = s.kind == OptimizerKind::kSgd                                       ? 0
                          : s.kind == OptimizerKind::kAdam || s.kind == OptimizerKind::kAdamW ? 2
                                                                                              : 1;
    for (size_t i = 0; i < options.states.size(); ++i) {
      const auto states = options.states[i].cast<py::list>();
      T* of[2] = {nullptr, nullptr};
      const std::string name = "state of parameter " + std::to_string(i);
      const bool trained = i >= update.trainable.size() || update.trainable[i];
      if (states.size() > 2 || (trained && states.size() < needed)) {
        throw py::value_error(name + ": " + std::to_string(states.size()) +
                              " arrays, the optimizer needs " + std::to_string(needed));
      }
      for (size_t j = 0; j < states.size(); ++j) {
        const auto array = states[j].cast<py::array>();
        of[j] = data_of<T>(array, name, true);
        if (i < arrays_.size() && array.size() != arrays_[i].size()) {
          throw py::value_error(name + " has " + std::to_string(array.size()) +
                                " elements, the parameter " + std::to_string(arrays_[i].size()));
        }
      }
      update.states.emplace_back(of[0], of[1]);
    }
    return update;
  }

  std::vector<py::array> arrays_;
  Executor<T> executor_;
};

}  // namespace cavs
