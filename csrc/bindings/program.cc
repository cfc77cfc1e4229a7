#include "exec/program.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <variant>

#include "base/thread_pool.h"
#include "bindings/module.h"
#include "exec/executor.h"
#include "exec/spaces.h"
#include "exec/validate.h"

namespace py = pybind11;

namespace cavs {
namespace {

// The number of `name` among `names`.
template <class E>
E parse(const std::string& name, std::initializer_list<const char*> names, const char* what) {
  int i = 0;
  std::string all;
  for (const char* n : names) {
    if (name == n) return static_cast<E>(i);
    all += std::string(i++ ? ", " : "") + n;
  }
  throw py::value_error(std::string(what) + " '" + name + "' is none of " + all);
}
Role parse_role(const std::string& s) {
  return parse<Role>(s, {"arena", "scratch", "param", "grad", "feature", "ones", "count"}, "role");
}
RowMap parse_map(const std::string& s) {
  return parse<RowMap>(s, {"self", "one", "index", "segment_sum"}, "row map");
}
Array parse_array(const std::string& s) {
  return parse<Array>(s, {"none", "order", "edge_order", "child", "parent", "nth_child", "nth_edge",
                          "parent_if_nth", "graph_of", "index_feature", "children", "edges", "out",
                          "graph_rows"},
                      "array");
}
InstructionKind parse_kind(const std::string& s) {
  return parse<InstructionKind>(s, {"matmul", "map", "segment_max", "cross_entropy",
                                    "cross_entropy_grad", "copy", "matmul_tn", "sum_rows",
                                    "lookup_grad"},
                                "instruction kind");
}
MapOpcode parse_opcode(const std::string& s) {
  return parse<MapOpcode>(s, {"constant", "copy", "add", "sub", "mul", "div", "max", "min", "neg",
                              "abs", "exp", "log", "tanh", "sigmoid", "sqrt", "greater",
                              "greater_equal", "equal", "select", "fma", "uniform"},
                          "opcode");
}
StoreMode parse_mode(const std::string& s) {
  return parse<StoreMode>(s, {"write", "sum", "max"}, "store mode");
}
StageKind parse_stage(const std::string& s) {
  return parse<StageKind>(s, {"rows", "loop", "global"}, "stage kind");
}
OptimizerKind parse_optimizer(const std::string& s) {
  return parse<OptimizerKind>(s, {"sgd", "momentum", "adagrad", "adam", "adamw"}, "optimizer");
}

// A dict with defaults that refuses keys it does not know.
class Fields {
 public:
  Fields(const py::dict& dict, std::initializer_list<const char*> known) : dict_(dict) {
    for (const auto& [key, value] : dict) {
      const std::string name = py::str(key);
      bool found = false;
      for (const char* k : known) found |= name == k;
      if (!found) throw py::key_error("unknown key '" + name + "'");
    }
  }
  template <class V>
  V get(const char* key, V missing) const {
    return dict_.contains(key) ? dict_[key].cast<V>() : std::move(missing);
  }
  template <class V>
  V need(const char* key) const {
    if (!dict_.contains(key)) throw py::key_error(std::string("missing key '") + key + "'");
    return dict_[key].cast<V>();
  }
  bool has(const char* key) const { return dict_.contains(key) && !dict_[key].is_none(); }

 private:
  const py::dict& dict_;
};

void check_size(const py::sequence& s, size_t size, const char* what) {
  if (s.size() != size) {
    throw py::value_error(std::string(what) + " has " + std::to_string(s.size()) +
                          " elements, needs " + std::to_string(size));
  }
}

Operand to_operand(const py::handle& h) {
  const auto t = h.cast<py::sequence>();
  check_size(t, 6, "operand (buffer, column, width, map, array, argument)");
  return {t[0].cast<int32_t>(),
          t[1].cast<int32_t>(),
          t[2].cast<int32_t>(),
          parse_map(t[3].cast<std::string>()),
          parse_array(t[4].cast<std::string>()),
          t[5].cast<int32_t>()};
}

Instruction to_instruction(const py::dict& dict) {
  const Fields f(dict, {"kind", "space", "inputs", "out", "accumulate", "weight", "split",
                        "argument", "argument2", "loads", "ops", "stores", "registers", "outer",
                        "inner", "label"});
  Instruction in{};
  in.kind = parse_kind(f.need<std::string>("kind"));
  in.space = f.need<int32_t>("space");
  in.label = f.get<std::string>("label", "");
  for (const py::handle& h : f.get<py::sequence>("inputs", py::list())) in.inputs.push_back(to_operand(h));
  if (f.has("out")) {
    in.out = to_operand(dict["out"]);
    if (in.out.map != RowMap::kSelf) throw py::value_error("[" + in.label + "] out is not self");
  } else if (in.kind != InstructionKind::kMap && in.kind != InstructionKind::kLookupGrad) {
    throw py::key_error("[" + in.label + "] missing key 'out'");
  }
  in.accumulate = f.get("accumulate", false);
  in.weight = f.get("weight", -1);
  in.split = f.get("split", 0);
  in.argument = f.get("argument", 0);
  in.argument2 = f.get("argument2", 0);
  in.registers = f.get("registers", 0);
  in.outer = f.get("outer", 1);
  in.inner = f.get("inner", 0);
  for (const py::handle& h : f.get<py::sequence>("loads", py::list())) {
    const auto t = h.cast<py::sequence>();
    check_size(t, 3, "load (operand, outer_stride, scalar)");
    in.loads.push_back({to_operand(t[0]), t[1].cast<int32_t>(), t[2].cast<bool>()});
  }
  for (const py::handle& h : f.get<py::sequence>("ops", py::list())) {
    const auto t = h.cast<py::sequence>();
    check_size(t, 6, "op (opcode, dst, a, b, c, imm)");
    in.ops.push_back({parse_opcode(t[0].cast<std::string>()), t[1].cast<int16_t>(),
                      t[2].cast<int16_t>(), t[3].cast<int16_t>(), t[4].cast<int16_t>(),
                      t[5].cast<double>()});
  }
  for (const py::handle& h : f.get<py::sequence>("stores", py::list())) {
    const auto t = h.cast<py::sequence>();
    check_size(t, 5, "store (buffer, column, outer_stride, mode, reg)");
    in.stores.push_back({t[0].cast<int32_t>(), t[1].cast<int32_t>(), t[2].cast<int32_t>(),
                         parse_mode(t[3].cast<std::string>()), t[4].cast<int16_t>()});
  }
  return in;
}

// The program while Python builds it; frozen once finished.
struct Builder {
  std::shared_ptr<Program> program = std::make_shared<Program>();
  bool finished = false;

  Program& open() {
    if (finished) throw py::value_error("the program is finished");
    return *program;
  }
  template <class V>
  static int32_t add(std::vector<V>& to, V value) {
    to.push_back(std::move(value));
    return static_cast<int32_t>(to.size()) - 1;
  }
};

using Pieces = std::vector<std::tuple<int32_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                                      int64_t>>;

void bind_builder(py::module_& m) {
  py::classh<Builder>(m, "Program", "A compiled program: buffers, weights, instructions, stages.")
      .def(py::init<>())
      .def_property(
          "kinds", [](const Builder& b) { return b.program->kinds; },
          [](Builder& b, std::vector<uint64_t> kinds) { b.open().kinds = std::move(kinds); })
      .def(
          "add_buffer",
          [](Builder& b, const std::string& role, int32_t index, int32_t space, int32_t width,
             int32_t first, int32_t last) {
            return Builder::add(b.open().buffers,
                                Buffer{parse_role(role), index, space, width, first, last});
          },
          py::arg("role"), py::arg("index"), py::arg("space"), py::arg("width"),
          py::arg("first") = 0, py::arg("last") = 0)
      .def(
          "add_weight",
          [](Builder& b, int64_t k, int64_t n, const Pieces& pieces) {
            Weight w{k, n, {}};
            for (const auto& piece : pieces) {
              w.pieces.push_back(std::apply([](auto... v) { return WeightPiece{v...}; }, piece));
            }
            return Builder::add(b.open().weights, std::move(w));
          },
          py::arg("k"), py::arg("n"), py::arg("pieces"))
      .def(
          "add_instruction",
          [](Builder& b, const py::dict& dict) {
            return Builder::add(b.open().instructions, to_instruction(dict));
          },
          py::arg("instruction"))
      .def(
          "add_stage",
          [](Builder& b, const py::dict& dict) {
            const Fields f(dict, {"kind", "space", "body", "reversed", "bodies", "label"});
            Stage s{};
            s.kind = parse_stage(f.need<std::string>("kind"));
            s.space = f.get("space", kVertexSpace);
            s.body = f.get<std::vector<int32_t>>("body", {});
            s.reversed = f.get("reversed", false);
            s.bodies = f.get<std::vector<std::vector<int32_t>>>("bodies", {});
            s.label = f.get<std::string>("label", "");
            return Builder::add(b.open().stages, std::move(s));
          },
          py::arg("stage"))
      .def(
          "finish",
          [](Builder& b, int32_t loss, std::vector<int32_t> outputs) {
            Program& p = b.open();
            p.loss = loss;
            p.outputs = std::move(outputs);
            validate(p);
            b.finished = true;
          },
          py::arg("loss") = -1, py::arg("outputs") = std::vector<int32_t>{},
          "Checks the program and closes it; ValueError naming the instruction at fault.");
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

// Names for the map of the report.
py::dict to_dict(const Report& r) {
  const auto lines = [](const std::vector<Report::Line>& from, bool instruction) {
    py::list out;
    for (const Report::Line& line : from) {
      py::dict d;
      d["label"] = line.label;
      d["kind"] = line.kind;
      d["seconds"] = line.seconds;
      if (instruction) {
        d["calls"] = line.calls;
        d["flops"] = line.flops;
        d["gather_bytes"] = line.gather_bytes;
        d["write_bytes"] = line.write_bytes;
      }
      out.append(std::move(d));
    }
    return out;
  };
  double products = 0, maps = 0, other = 0, flops = 0;
  int64_t gather = 0, write = 0;
  for (const Report::Line& line : r.instructions) {
    (line.flops > 0 ? products : line.kind == "map" ? maps : other) += line.seconds;
    flops += line.flops;
    gather += line.gather_bytes;
    write += line.write_bytes;
  }
  py::dict d;
  d["arena_bytes"] = r.arena_bytes;
  d["peak_bytes"] = r.peak_bytes;
  d["scratch_bytes"] = r.scratch_bytes;
  d["packed_bytes"] = r.packed_bytes;
  d["runs"] = r.runs;
  d["pack_seconds"] = r.pack_seconds;
  d["product_seconds"] = products;
  d["map_seconds"] = maps;
  d["other_seconds"] = other;
  d["flops"] = flops;
  d["gather_bytes"] = gather;
  d["write_bytes"] = write;
  d["tasks"] = r.widths.size();
  d["widths"] = r.widths;
  d["segments"] = r.segments;
  d["threads"] = r.threads;
  d["estimated_seconds"] = r.estimated_seconds;
  d["stages"] = lines(r.stages, false);
  d["instructions"] = lines(r.instructions, true);
  return d;
}

struct StepOptions {
  py::dict optimizer;
  py::list states;
  std::vector<bool> trainable;
  std::optional<double> max_norm;
};

// An executor of either precision; holds the parameter arrays.
template <class T>
class Engine {
 public:
  Engine(std::shared_ptr<const Program> program, const std::vector<py::array>& parameters)
      : arrays_(parameters), executor_(std::move(program), views(parameters)) {}

  double run(const std::shared_ptr<Schedule>& schedule, const py::list& floats,
             const py::list& ints, uint64_t seed, uint64_t step) {
    const Inputs<T> inputs = to_inputs(schedule, floats, ints, seed, step);
    const py::gil_scoped_release release;
    return executor_.run(inputs);
  }

  std::pair<double, double> step(const std::shared_ptr<Schedule>& schedule, const py::list& floats,
                                 const py::list& ints, uint64_t seed, uint64_t step,
                                 const StepOptions& options) {
    const Inputs<T> inputs = to_inputs(schedule, floats, ints, seed, step);
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

  static Inputs<T> to_inputs(const std::shared_ptr<Schedule>& schedule, const py::list& floats,
                             const py::list& ints, uint64_t seed, uint64_t step) {
    Inputs<T> inputs;
    inputs.schedule = schedule;
    inputs.seed = seed;
    inputs.step = step;
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
    const size_t needed = s.kind == OptimizerKind::kSgd                                    ? 0
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

using AnyEngine = std::variant<std::unique_ptr<Engine<float>>, std::unique_ptr<Engine<double>>>;

struct PyExecutor {
  AnyEngine engine;
  template <class F>
  auto visit(F&& f) {
    return std::visit([&](auto& e) { return f(*e); }, engine);
  }
};

std::unique_ptr<PyExecutor> make_executor(const Builder& b,
                                          const std::vector<py::array>& parameters) {
  if (!b.finished) throw py::value_error("the program is not finished: call finish() first");
  auto out = std::make_unique<PyExecutor>();
  if (!parameters.empty() && py::isinstance<py::array_t<double>>(parameters[0])) {
    out->engine = std::make_unique<Engine<double>>(b.program, parameters);
  } else {
    out->engine = std::make_unique<Engine<float>>(b.program, parameters);
  }
  return out;
}

void bind_executor(py::module_& m) {
  py::classh<PyExecutor>(m, "Executor", "Runs a program over the schedules of batches.")
      .def(py::init(&make_executor), py::arg("program"), py::arg("parameters"),
           "The parameters (all float32 or all float64, C-contiguous) are read and written in "
           "place.")
      .def(
          "run",
          [](PyExecutor& x, const std::shared_ptr<Schedule>& schedule, const py::list& floats,
             const py::list& ints, uint64_t seed, uint64_t step) {
            return x.visit([&](auto& e) { return e.run(schedule, floats, ints, seed, step); });
          },
          py::arg("schedule"), py::arg("float_features"), py::arg("int_features"),
          py::arg("seed") = 0, py::arg("step") = 0, "One pass over a batch; returns the loss.")
      .def(
          "step",
          [](PyExecutor& x, const std::shared_ptr<Schedule>& schedule, const py::list& floats,
             const py::list& ints, uint64_t seed, uint64_t step, const py::dict& optimizer,
             const py::list& states, std::vector<bool> trainable, std::optional<double> max_norm) {
            const StepOptions options{optimizer, states, std::move(trainable), max_norm};
            return x.visit([&](auto& e) {
              return e.step(schedule, floats, ints, seed, step, options);
            });
          },
          py::arg("schedule"), py::arg("float_features"), py::arg("int_features"),
          py::arg("seed"), py::arg("step"), py::arg("optimizer"), py::arg("states"),
          py::arg("trainable"), py::arg("max_norm") = py::none(),
          "run and one update; returns (loss, gradient norm). Updates nothing if one of them is "
          "not finite.")
      .def(
          "gradient", [](PyExecutor& x, int32_t i) {
            return x.visit([&](auto& e) { return e.gradient(i); });
          },
          py::arg("parameter"), "A copy of the gradient, in the shape of the parameter.")
      .def(
          "gradient_rows", [](PyExecutor& x, int32_t i) {
            return x.visit([&](auto& e) { return e.gradient_rows(i); });
          },
          py::arg("parameter"), "(rows, values) of a sparse gradient; None if it is dense.")
      .def(
          "output", [](PyExecutor& x, int32_t buffer) {
            return x.visit([&](auto& e) { return e.output(buffer); });
          },
          py::arg("buffer"), "A copy of an output in the caller's order; zero rows where absent.")
      .def("report", [](PyExecutor& x) {
        return to_dict(x.visit([](auto& e) { return e.executor().report(); }));
      })
      .def(
          "set_profiling", [](PyExecutor& x, bool on) {
            x.visit([&](auto& e) { e.executor().set_profiling(on); });
          },
          py::arg("on"), "Starts (from zero) or stops the clocks of report().")
      .def(
          "set_serial", [](PyExecutor& x, bool on) {
            x.visit([&](auto& e) { e.executor().set_serial(on); });
          },
          py::arg("on"), "One vertex at a time on one thread: slow, for comparison.")
      .def("invalidate_parameters", [](PyExecutor& x) {
        x.visit([](auto& e) { e.executor().invalidate_parameters(); });
      }, "Call after writing to a parameter: packed copies are made anew.");
}

}  // namespace

void bind_program(py::module_& m) {
  bind_builder(m);
  bind_executor(m);
  m.def("num_threads", [] { return thread_pool().num_threads(); });
  m.def(
      "set_num_threads", [](int n) { thread_pool().set_num_threads(n); }, py::arg("n"),
      py::call_guard<py::gil_scoped_release>());
}
}  // namespace cavs
