#include <variant>

#include "base/thread_pool.h"
#include "bindings/engine.h"
#include "bindings/module.h"
#include "bindings/report.h"
#include "kernels/dispatch.h"

namespace cavs {
namespace {

using AnyEngine = std::variant<std::unique_ptr<Engine<float>>, std::unique_ptr<Engine<double>>>;

struct PyExecutor {
  AnyEngine engine;
  template <class F>
  auto visit(F&& f) {
    return std::visit([&](auto& e) { return f(*e); }, engine);
  }
  template <class F>
  auto visit_without_gil(F&& f) {
    return visit([&](auto& e) { return without_gil([&] { return f(e.executor()); }); });
  }
};

std::unique_ptr<PyExecutor> make_executor(const Builder& b,
                                          const std::vector<py::array>& parameters,
                                          const std::string& products) {
  if (!b.finished) throw py::value_error("the program is not finished: call finish() first");
  auto out = std::make_unique<PyExecutor>();
  const Products named = products_named(products);
  if (!parameters.empty() && py::isinstance<py::array_t<double>>(parameters[0])) {
    out->engine = std::make_unique<Engine<double>>(b.program, parameters, named);
  } else {
    out->engine = std::make_unique<Engine<float>>(b.program, parameters, named);
  }
  return out;
}

void bind_class(py::module_& m) {
  py::classh<ForwardRun>(m, "ForwardRun", "A run without its backward stages, see forward.")
      .def_property_readonly(
          "finished", [](const ForwardRun& run) { return run.arena == nullptr; },
          "True after the backward run.");
  py::classh<PyExecutor>(m, "Executor", "Runs a program over the schedules of batches.")
      .def(py::init(&make_executor), py::arg("program"), py::arg("parameters"),
           py::arg("products") = name_of(Products::kExact),
           "The parameters (all float32 or all float64, C-contiguous) are read and written in "
           "place. products: precision of float32 products: \"float32\" or, if the machine has "
           "instructions for them, \"int16\" (integers), \"bfloat16x3\" (numbers split into two "
           "bfloat16) or \"bfloat16\" (numbers rounded to one).")
      .def(
          "run",
          [](PyExecutor& x, const std::shared_ptr<Schedule>& schedule, const py::list& floats,
             const py::list& ints, uint64_t seed, uint64_t step, double scale,
             const std::vector<double>& totals) {
            RunOptions run{schedule, floats, ints, seed, step, scale, totals};
            return x.visit([&](auto& e) { return e.run(run); });
          },
          py::arg("schedule"), py::arg("float_features"), py::arg("int_features"),
          py::arg("seed") = 0, py::arg("step") = 0, py::arg("scale") = 1.0,
          py::arg("totals") = std::vector<double>{},
          "Run one batch; return the loss. scale and totals describe the global batch of a "
          "replica, see Count in program.h.")
      .def(
          "step",
          [](PyExecutor& x, const std::shared_ptr<Schedule>& schedule, const py::list& floats,
             const py::list& ints, uint64_t seed, uint64_t step, const py::dict& optimizer,
             const py::list& states, std::vector<bool> trainable, std::optional<double> max_norm) {
            StepOptions options{optimizer, states, std::move(trainable), max_norm};
            RunOptions run{schedule, floats, ints, seed, step, 1, {}};
            return x.visit([&](auto& e) { return e.step(run, options); });
          },
          py::arg("schedule"), py::arg("float_features"), py::arg("int_features"), py::arg("seed"),
          py::arg("step"), py::arg("optimizer"), py::arg("states"), py::arg("trainable"),
          py::arg("max_norm") = py::none(),
          "Run a batch and update once; return (loss, gradient norm). Nothing is updated unless "
          "both are finite.")
      .def(
          "forward",
          [](PyExecutor& x, const std::shared_ptr<Schedule>& schedule, const py::list& floats,
             const py::list& ints, uint64_t seed, uint64_t step) {
            RunOptions run{schedule, floats, ints, seed, step, 1, {}};
            return x.visit([&](auto& e) { return e.forward(run); });
          },
          py::arg("schedule"), py::arg("float_features"), py::arg("int_features"), py::arg("seed"),
          py::arg("step"),
          "Run the stages before the cotangents of outputs, whose features are not read, and "
          "return "
          "the run, which keeps its values for backward.")
      .def(
          "backward",
          [](PyExecutor& x, ForwardRun& forward, const std::shared_ptr<Schedule>& schedule,
             const py::list& floats, const py::list& ints, uint64_t seed, uint64_t step) {
            RunOptions run{schedule, floats, ints, seed, step, 1, {}};
            x.visit([&](auto& e) { e.backward(forward, run); });
          },
          py::arg("run"), py::arg("schedule"), py::arg("float_features"), py::arg("int_features"),
          py::arg("seed"), py::arg("step"),
          "Run the other stages, once, with the inputs of the forward run.")
      .def(
          "is_outdated",
          [](PyExecutor& x, const ForwardRun& run) {
            return x.visit([&](auto& e) { return e.executor().is_outdated(run); });
          },
          py::arg("run"), "True if parameters may have been written since the forward run.")
      .def(
          "pack_again", [](PyExecutor& x) { x.visit_without_gil([](auto& e) { e.pack_again(); }); },
          "As invalidate_parameters, but runs that read the parameters may still be continued.")
      .def(
          "arm_gradients",
          [](PyExecutor& x) { x.visit_without_gil([](auto& e) { e.arm_gradients(); }); },
          "Call before a run that other threads follow with wait_gradient.")
      .def(
          "give_up_gradients",
          [](PyExecutor& x) { x.visit([](auto& e) { e.executor().give_up_gradients(); }); },
          "End every wait_gradient: the run that was armed for is cancelled.")
      .def(
          "abandon", [](PyExecutor& x) { x.visit([](auto& e) { e.executor().abandon(); }); },
          "From another thread: let the run that is under way end early, by Abandoned.")
      .def(
          "wait_gradient",
          [](PyExecutor& x, int32_t i, int64_t begin, std::optional<int64_t> end) {
            return x.visit([&](auto& e) { return e.wait_gradient(i, begin, end); });
          },
          py::arg("parameter"), py::arg("begin") = 0, py::arg("end") = py::none(),
          "Wait, without the GIL, until elements [begin, end) of the gradient are final; False if "
          "the run failed.")
      .def(
          "gradient_slab",
          [](PyExecutor& x, int32_t i) {
            return x.visit([&](auto& e) { return e.executor().gradient_slab(i); });
          },
          py::arg("parameter"), "Number of elements of the gradient that become final together.")
      .def(
          "gradient_view",
          [](PyExecutor& x, int32_t i) {
            return x.visit([&](auto& e) { return e.gradient_view(i); });
          },
          py::arg("parameter"),
          "(None, values) of a dense gradient, (rows, values) of a sparse one: views of the "
          "engine's "
          "memory, valid until the next run.")
      .def(
          "gradient_block",
          [](PyExecutor& x) { return x.visit([](auto& e) { return e.gradient_block(); }); },
          "The memory of all dense gradients, in gradient_order; between them are zeros.")
      .def(
          "set_gradient_block",
          [](PyExecutor& x, const py::array& memory) {
            x.visit([&](auto& e) { e.set_gradient_block(memory); });
          },
          py::arg("memory"),
          "Store dense gradients in this memory from now on. It has as many elements as "
          "gradient_block and is filled with zeros.")
      .def(
          "set_factored",
          [](PyExecutor& x, int32_t i) {
            return x.visit_without_gil([&](auto& e) { return e.set_factored(i); });
          },
          py::arg("parameter"),
          "Keep the operands of the gradient's products instead of the gradient from now on; "
          "False, without effect, unless it is a sum of products.")
      .def(
          "factors",
          [](PyExecutor& x, int32_t i) { return x.visit([&](auto& e) { return e.factors(i); }); },
          py::arg("parameter"),
          "X [rows, k] and dY [rows, n] of a factored gradient: views, valid until "
          "the next run.")
      .def(
          "add_product",
          [](PyExecutor& x, const py::array& left, const py::array& right, const py::array& out) {
            x.visit([&](auto& e) { e.add_product(left, right, out); });
          },
          py::arg("left"), py::arg("right"), py::arg("out"), "out += left^T right, in place.")
      .def(
          "gradient_order",
          [](PyExecutor& x) {
            return x.visit(
                [](auto& e) { return std::vector<int32_t>(e.executor().gradient_order()); });
          },
          "Parameters with a gradient, in the order in which gradients are completed.")
      .def(
          "squared_norm",
          [](PyExecutor& x, const py::list& pieces) {
            return x.visit([&](auto& e) { return e.squared_norm(pieces); });
          },
          py::arg("pieces"), "Sum of squares of gradients, given as for apply.")
      .def(
          "apply",
          [](PyExecutor& x, const py::list& pieces, const py::dict& optimizer,
             const py::list& states, std::vector<bool> trainable, double scale) {
            StepOptions options{optimizer, states, std::move(trainable), std::nullopt};
            x.visit([&](auto& e) { e.apply(pieces, options, scale); });
          },
          py::arg("pieces"), py::arg("optimizer"), py::arg("states"), py::arg("trainable"),
          py::arg("scale") = 1.0,
          "Update once with gradients times scale. A piece is (parameter, values, rows or None, "
          "stride or None, offset): row i of the values belongs at element offset + (i or rows[i]) "
          "* stride of the parameter.")
      .def(
          "gradient",
          [](PyExecutor& x, int32_t i) { return x.visit([&](auto& e) { return e.gradient(i); }); },
          py::arg("parameter"), "A copy of the gradient, in the shape of the parameter.")
      .def(
          "gradient_rows",
          [](PyExecutor& x, int32_t i) {
            return x.visit([&](auto& e) { return e.gradient_rows(i); });
          },
          py::arg("parameter"), "(rows, values) of a sparse gradient; None if it is dense.")
      .def(
          "output",
          [](PyExecutor& x, int32_t buffer) {
            return x.visit([&](auto& e) { return e.output(buffer); });
          },
          py::arg("buffer"), "A copy of an output in the caller's order; zero rows where absent.")
      .def("report",
           [](PyExecutor& x) {
             return to_dict(x.visit_without_gil([](auto& e) { return e.report(); }));
           })
      .def(
          "set_profiling",
          [](PyExecutor& x, bool on) {
            x.visit_without_gil([&](auto& e) { e.set_profiling(on); });
          },
          py::arg("on"), "Start (from zero) or stop the clocks of report().")
      .def(
          "set_serial",
          [](PyExecutor& x, bool on) { x.visit_without_gil([&](auto& e) { e.set_serial(on); }); },
          py::arg("on"), "One vertex at a time on one thread: slow, for comparison.")
      .def(
          "invalidate_parameters",
          [](PyExecutor& x) { x.visit_without_gil([](auto& e) { e.invalidate_parameters(); }); },
          "Call after writing to a parameter: it is packed again.");
}

}  // namespace

void bind_executor(py::module_& m) {
  bind_class(m);
  m.attr("MAX_THREADS") = kMaxThreads;
  m.def("num_threads", [] { return thread_pool().num_threads(); });
  m.def(
      "set_num_threads", [](int n) { thread_pool().set_num_threads(n); }, py::arg("n"),
      py::call_guard<py::gil_scoped_release>());
  m.def(
      "use_openmp_of",
      [](const std::string& library) { return thread_pool().use_openmp_of(library); },
      py::arg("library"), py::call_guard<py::gil_scoped_release>());
}
}  // namespace cavs
