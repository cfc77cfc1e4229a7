// An executor in Python: NumPy arrays in, views of the engine's memory out.
#pragma once

#include "bindings/gradients.h"

namespace cavs {

// An executor of either precision, with its parameter arrays.
template <class T>
class Engine {
 public:
  Engine(std::shared_ptr<const Program> program, const std::vector<py::array>& parameters,
         Products products)
      : arrays_(parameters), executor_(std::move(program), views<T>(parameters), products) {}

  double run(RunOptions& options) {
    const Inputs<T> inputs = to_inputs<T>(options);
    return without_gil([&] { return executor_.run(inputs); });
  }

  std::pair<double, double> step(RunOptions& run, StepOptions& options) {
    const Inputs<T> inputs = to_inputs<T>(run);
    const Update<T> update = to_update<T>(options, arrays_);
    const StepResult result = without_gil([&] { return executor_.step(inputs, update); });
    return {result.loss, result.grad_norm};
  }

  std::shared_ptr<ForwardRun> forward(RunOptions& options) {
    const Inputs<T> inputs = to_inputs<T>(options);
    return without_gil([&] { return executor_.forward(inputs); });
  }

  void backward(ForwardRun& run, RunOptions& options) {
    const Inputs<T> inputs = to_inputs<T>(options);
    without_gil([&] { executor_.backward(run, inputs); });
  }

  py::array gradient(int32_t param) const {
    if (param < 0 || param >= static_cast<int32_t>(arrays_.size())) {
      throw py::index_error("parameter " + std::to_string(param) + " of " +
                            std::to_string(arrays_.size()));
    }
    const py::array& like = arrays_[param];
    py::array_t<T> out(std::vector<py::ssize_t>(like.shape(), like.shape() + like.ndim()));
    T* to = out.mutable_data();
    without_gil([&] { executor_.gradient(param, to); });
    return out;
  }

  py::object gradient_rows(int32_t param) {
    auto found = without_gil([&] { return executor_.gradient_rows(param); });
    if (!found) return py::none();
    auto& [rows, values] = *found;
    return py::make_tuple(py::array_t<int32_t>(static_cast<py::ssize_t>(rows.size()), rows.data()),
                          to_array(std::move(values)));
  }

  py::array output(int32_t buffer) {
    return to_array(without_gil([&] { return executor_.output(buffer); }));
  }

  bool wait_gradient(int32_t param, int64_t begin, std::optional<int64_t> end) const {
    const int64_t last = end.value_or(executor_.parameter_size(param));
    return without_gil([&] { return executor_.wait_gradient(param, begin, last); });
  }

  // (rows or None, values), views of the engine's memory, which they keep alive.
  py::tuple gradient_view(int32_t param) const {
    const GradientView<T> view = executor_.gradient_view(param);
    return to_tuple(view, owner_of(view.owner));
  }

  // All dense gradients, in gradient_order, with gaps between them.
  py::array gradient_block() const {
    const GradientView<T> all = executor_.gradient_block();
    return array_of(all.values, {all.count}, owner_of(all.owner));
  }

  void set_gradient_block(const py::array& memory) {
    T* data = data_of<T>(memory, {"the memory of gradients"}, true);
    const int64_t size = executor_.gradient_block().count;
    if (memory.size() != size) {
      throw py::value_error("memory of " + std::to_string(memory.size()) + " elements for " +
                            std::to_string(size) + " of gradients");
    }
    // A backward run may drop the memory of an array, without the GIL.
    const std::shared_ptr<T> kept(data, [owner = py::object(memory)](T*) mutable {
      const py::gil_scoped_acquire gil;
      owner.release().dec_ref();
    });
    // The previous memory may belong to an array too: it is freed here, under the GIL.
    const auto before = without_gil([&] { return executor_.set_gradient_block(kept); });
  }

  py::tuple factors(int32_t param) const {
    const auto to_array = [](const GradientView<T>& view) {
      return array_of(view.values, {view.count, view.width}, owner_of(view.owner));
    };
    const auto [left, right] = executor_.factors(param);
    return py::make_tuple(to_array(left), to_array(right));
  }

  void add_product(const py::array& left, const py::array& right, const py::array& out) const {
    if (left.ndim() != 2 || right.ndim() != 2 || left.shape(0) != right.shape(0) ||
        out.size() != left.shape(1) * right.shape(1)) {
      throw py::value_error("left and right need as many rows, out the product of their columns");
    }
    const T* a = data_of<T>(left, {"left"}, false);
    const T* b = data_of<T>(right, {"right"}, false);
    T* c = data_of<T>(out, {"out"}, true);
    const py::ssize_t rows = left.shape(0), k = left.shape(1), n = right.shape(1);
    without_gil([&] { executor_.add_product(a, b, rows, k, n, c); });
  }

  double squared_norm(const py::list& given) {
    const py::tuple pieces(given);
    const std::vector<GradientPiece<T>> work = to_pieces<T>(pieces);
    return without_gil([&] { return executor_.squared_norm(work); });
  }

  void apply(const py::list& given, StepOptions& options, double scale) {
    const py::tuple pieces(given);
    const std::vector<GradientPiece<T>> work = to_pieces<T>(pieces);
    const Update<T> update = to_update<T>(options, arrays_);
    without_gil([&] { executor_.apply(update, work, scale); });
  }

  Executor<T>& executor() { return executor_; }

 private:
  std::vector<py::array> arrays_;
  Executor<T> executor_;
};

}  // namespace cavs
