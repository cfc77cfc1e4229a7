// The split step of cavs._cuda's executor, as of cavs._engine's: gradients are read after a run and
// given to a later update.
#include "bindings/gradients.h"
#include "cuda/bindings/bindings.h"

namespace cavs::cuda {
namespace {

// Values on the host, or, given as a count, values of a gradient that was kept on the device.
template <class T>
std::vector<GradientPiece<T>> pieces_of(Executor<T>& e, const py::tuple& pieces) {
  return to_pieces<T>(pieces, [&](int32_t param) { return e.kept_gradient(param); });
}

void bind_waiting(py::class_<PyExecutor>& type) {
  type.def(
          "arm_gradients", [](PyExecutor& x) { x.visit([](auto& e) { e.arm_gradients(); }); },
          "Announce a run whose gradients other threads wait for with wait_gradient.")
      .def(
          "give_up_gradients",
          [](PyExecutor& x) { x.visit([](auto& e) { e.give_up_gradients(); }); },
          "End every wait_gradient: the announced run will not happen.")
      .def(
          "wait_gradient",
          [](PyExecutor& x, int32_t i, int64_t begin, std::optional<int64_t> end) {
            return x.visit([&](auto& e) {
              return without_gil(
                  [&] { return e.wait_gradient(i, begin, end.value_or(e.parameter_size(i))); });
            });
          },
          py::arg("parameter"), py::arg("begin") = 0, py::arg("end") = py::none(),
          "Wait, without the GIL, until elements [begin, end) of the gradient are on the host. "
          "False if the run failed.")
      .def(
          "gradient_slab",
          [](PyExecutor& x, int32_t i) {
            return x.visit([&](auto& e) { return e.gradient_slab(i); });
          },
          py::arg("parameter"), "Elements of the gradient that are copied to the host together.")
      .def(
          "gradient_order",
          [](PyExecutor& x) {
            return x.visit([](auto& e) { return std::vector<int32_t>(e.gradient_order()); });
          },
          "Parameters with a gradient, in the order in which their gradients are finished.");
}

void bind_views(py::class_<PyExecutor>& type) {
  type.def(
          "gradient_view",
          [](const py::object& self, int32_t i) {
            return self.cast<PyExecutor&>().visit([&](auto& e) -> py::tuple {
              return to_tuple(without_gil([&] { return e.gradient_view(i); }), self);
            });
          },
          py::arg("parameter"),
          "(None, values) of a dense gradient, (rows, values) of a sparse one: page-locked memory "
          "of the host, valid until the next run.")
      .def(
          "gradient_block",
          [](const py::object& self) {
            return self.cast<PyExecutor&>().visit([&](auto& e) -> py::array {
              const auto [data, size] = without_gil([&] { return e.gradient_block(); });
              return array_of(data, {size}, self);
            });
          },
          "The memory of all dense gradients on the host, in gradient_order; between them are "
          "zeros.")
      .def(
          "set_factored",
          [](PyExecutor& x, int32_t i) {
            return x.visit([&](auto& e) { return without_gil([&] { return e.set_factored(i); }); });
          },
          py::arg("parameter"),
          "From now on runs return the sufficient factors of the gradient instead of the gradient. "
          "False, changing nothing, if it is not a sum of products.")
      .def(
          "factors",
          [](const py::object& self, int32_t i) {
            return self.cast<PyExecutor&>().visit([&]<class T>(Executor<T>& e) -> py::tuple {
              const DeviceFactors& f = e.factors(i);
              return py::make_tuple(
                  array_of(f.host_left.template at<T>(), {f.of.rows, f.of.k}, self),
                  array_of(f.host_right.template at<T>(), {f.of.rows, f.of.n}, self));
            });
          },
          py::arg("parameter"),
          "X [rows, k] and dY [rows, n] of a factored gradient, on the host; valid until the next "
          "run.");
}

// Gradients that collectives sum on the device.
void bind_collectives(py::class_<PyExecutor>& type) {
  type.def(
          "keep_gradient",
          [](PyExecutor& x, int32_t i) {
            return x.visit(
                [&](auto& e) { return reinterpret_cast<uintptr_t>(e.keep_gradient(i)); });
          },
          py::arg("parameter"),
          "Do not copy a dense gradient to the host from now on; return its address on the device.")
      .def_property_readonly(
          "collective_stream",
          [](PyExecutor& x) {
            return x.visit(
                [](auto& e) { return reinterpret_cast<uintptr_t>(e.collective_stream()); });
          },
          "The stream on which to launch collectives.")
      .def(
          "follow_gradient",
          [](PyExecutor& x, int32_t i) {
            return x.visit(
                [&](auto& e) { return without_gil([&] { return e.follow_gradient(i); }); });
          },
          py::arg("parameter"),
          "Wait, without the GIL, until the gradient's computation has been launched; later work "
          "on the stream of collectives runs after it. False if the run failed.")
      .def(
          "open_collective",
          [](PyExecutor& x) { x.visit([](auto& e) { e.collectives().open(); }); },
          "Call before launching a collective.")
      .def(
          "close_collective",
          [](PyExecutor& x) { x.visit([](auto& e) { e.collectives().close(); }); },
          "Call after launching it: updates and later runs wait for it.")
      .def(
          "wait_collectives",
          [](PyExecutor& x, double seconds) {
            return x.visit([&](auto& e) {
              return without_gil([&] { return e.collectives().wait(seconds); });
            });
          },
          py::arg("seconds"), "True if the collectives of this step ended within so many seconds.")
      .def(
          "collective_seconds",
          [](PyExecutor& x) { return x.visit([](auto& e) { return e.collectives().seconds(); }); },
          "Seconds that they took on the device; call after wait_collectives.")
      .def(
          "squared_norm",
          [](PyExecutor& x, const py::list& given) {
            const py::tuple pieces(given);
            return x.visit([&]<class T>(Executor<T>& e) {
              const std::vector<GradientPiece<T>> work = pieces_of(e, pieces);
              return without_gil([&] { return e.squared_norm(work); });
            });
          },
          py::arg("pieces"), "Sum of squares of gradients, computed on the device.");
}

}  // namespace

void bind_split_step(py::class_<PyExecutor>& type) {
  bind_waiting(type);
  bind_views(type);
  bind_collectives(type);
  type.def(
      "apply",
      [](PyExecutor& x, const py::list& given, const py::dict& optimizer, const py::list& states,
         std::vector<bool> trainable, double scale) {
        const py::tuple pieces(given);
        load_program(*x.parameters, optimizer);
        StepOptions options{optimizer, states, std::move(trainable), std::nullopt};
        x.visit([&]<class T>(Executor<T>& e) {
          const std::vector<GradientPiece<T>> work = pieces_of(e, pieces);
          const Update<T> update = to_update<T>(options, x.parameters->arrays);
          const std::shared_ptr<const void> owner = keep_alive(states);
          without_gil([&] { e.apply(update, work, scale, owner); });
        });
      },
      py::arg("pieces"), py::arg("optimizer"), py::arg("states"), py::arg("trainable"),
      py::arg("scale") = 1.0,
      "Launch one update with gradients of the host times scale. pieces: see cavs._engine, with a "
      "number of values for gradients of keep_gradient. Arrays of pieces may be changed when the "
      "call returns, except gradient_block.");
}

}  // namespace cavs::cuda
