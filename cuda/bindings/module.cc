// The module cavs._cuda: devices, parameters and executors. Its executor has the interface of that
// of cavs._engine, whose programs and schedules it takes.
#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bindings/gradients.h"
#include "bindings/report.h"
#include "cuda/bindings/bindings.h"
#include "cuda/driver/context.h"

namespace cavs::cuda {
namespace {

struct Source {
  const char *name, *text;
};
constexpr Source kSources[] = {
#include "device_sources.inc"
};

py::dict sources() {
  py::dict out;
  for (const Source& s : kSources) out[s.name] = s.text;
  return out;
}

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const DeviceFault& fault) {
    const py::object type = py::module_::import("cavs.errors").attr("DeviceError");
    const py::object value = type(fault.what(), py::arg("hint") = fault.hint);
    PyErr_SetObject(type.ptr(), value.ptr());
  }
}

using Images = std::unordered_map<std::string, std::string>;

Images to_images(const std::map<std::string, py::bytes>& in) {
  Images out;
  for (const auto& [name, image] : in) out[name] = image;
  return out;
}

std::shared_ptr<PyParameters> make_parameters(std::shared_ptr<Device> device,
                                              const std::map<std::string, py::bytes>& images,
                                              const std::vector<py::array>& arrays,
                                              const std::string& precision, const std::string& blas,
                                              bool deterministic, const py::object& compile) {
  const auto rounding = parse<Precision>(precision, {"float32", "tf32", "bfloat16"}, "precision");
  auto out = std::make_shared<PyParameters>();
  out->device = device;
  out->arrays = arrays;
  out->deterministic = deterministic;
  out->compile = compile;
  const Images kernels = to_images(images);
  const auto make = [&]<class T>(T) {
    const std::vector<Parameter<T>> host = views<T>(arrays);
    const py::gil_scoped_release release;
    const DeviceLock lock(*device);
    out->of = std::pair{
        std::make_shared<KernelLibrary<T>>(device, kernels, rounding, blas, deterministic),
        std::make_shared<Parameters<T>>(device, host)};
  };
  if (!arrays.empty() && py::isinstance<py::array_t<double>>(arrays[0])) {
    make(double{});
  } else {
    make(float{});
  }
  return out;
}

// A launched training step, which keeps alive what it writes to.
struct PyStep {
  PyStep(std::shared_ptr<PyParameters> of, std::shared_ptr<Step> launched)
      : parameters(std::move(of)), step(std::move(launched)) {}
  std::shared_ptr<PyParameters> parameters;
  std::shared_ptr<Step> step;
};

std::unique_ptr<PyExecutor> make_executor(
    const Builder& b, const std::shared_ptr<PyParameters>& parameters, const py::bytes& image,
    const std::vector<std::tuple<int32_t, std::string, int32_t>>& maps,
    const std::vector<int32_t>& half, const std::string& replay,
    const std::shared_ptr<Cudnn>& cudnn, const py::bytes& persistent_image,
    const std::vector<std::tuple<int32_t, std::string, int32_t, int32_t, std::vector<int32_t>>>&
        persistent) {
  if (!b.finished) throw py::value_error("the program is not finished: call finish() first");
  auto out = std::make_unique<PyExecutor>();
  out->parameters = parameters;
  std::vector<MapName> names;
  for (const auto& [instruction, name, items] : maps) names.push_back({instruction, name, items});
  const std::string code = image, persistent_code = persistent_image;
  std::vector<PersistentName> loops;
  for (const auto& [stage, name, blocks, shared, instructions] : persistent) {
    loops.push_back({stage, name, blocks, shared, instructions});
  }
  const auto when = parse<Replay>(replay, {"never", "auto", "always"}, "replay");
  const py::gil_scoped_release release;
  std::visit(
      [&]<class L, class P>(const std::pair<std::shared_ptr<KernelLibrary<L>>, P>& of) {
        out->of = std::make_unique<Executor<L>>(
            b.program, CompiledProgram<L>{parameters->device, of.first, of.second, code, names,
                                          half, when, cudnn, persistent_code, loops});
      },
      parameters->of);
  return out;
}

void bind_device(py::module_& m) {
  py::class_<Device, std::shared_ptr<Device>>(m, "Device", "A GPU, through its driver.")
      .def(py::init([](const std::string& driver, int ordinal,
                       const std::optional<std::function<Address(size_t)>>& allocate,
                       const std::optional<std::function<void(Address)>>& release,
                       bool second_stream, int few_rows, int blas_rows, bool guards,
                       int narrow_rows, const std::string& install) {
             Allocator allocator;
             if (allocate) allocator.allocate = *allocate;
             if (release) {  // called by destructors, which must not throw
               allocator.release = [release = *release](Address address) {
                 const py::gil_scoped_acquire gil;
                 try {
                   release(address);
                 } catch (py::error_already_set& error) {
                   error.discard_as_unraisable("release of device memory");
                 }
               };
             }
             const DeviceOptions options{second_stream, few_rows, blas_rows, narrow_rows, guards};
             return std::make_shared<Device>(driver, ordinal, std::move(allocator), options,
                                             install);
           }),
           py::arg("driver"), py::arg("ordinal") = 0, py::arg("allocate") = py::none(),
           py::arg("release") = py::none(), py::arg("second_stream") = true,
           py::arg("few_rows") = DeviceOptions{}.few_rows,
           py::arg("blas_rows") = DeviceOptions{}.blas_rows, py::arg("guards") = false,
           py::arg("narrow_rows") = DeviceOptions{}.narrow_rows, py::arg("install") = "",
           "driver: path of libcuda. allocate, release: the source of device memory, by address; "
           "by default the driver. second_stream: run sums concurrently with loops. few_rows: "
           "products of up to so many rows use kernels for few rows. blas_rows: products of as "
           "many rows and more use cuBLASLt. guards: surround values with guard bytes and check "
           "them after each run. narrow_rows: tasks of up to so many rows may run in a persistent "
           "kernel. install: the pip command that errors name.")
      .def_property_readonly("shared_bytes", &Device::shared_bytes)
      .def_property_readonly("multiprocessors", &Device::multiprocessors);
}

void bind_parameters(py::module_& m) {
  py::class_<PyParameters, std::shared_ptr<PyParameters>>(m, "Parameters",
                                                          "Parameters on a device.")
      .def(py::init(&make_parameters), py::arg("device"), py::arg("images"), py::arg("arrays"),
           py::arg("precision") = "float32", py::arg("blas") = "", py::arg("deterministic") = false,
           py::arg("compile") = py::none(),
           "images: the compiled kernels by file. arrays: those of the host, all float32 or all "
           "float64; download() writes them. precision of float32 products: float32, tf32 or "
           "bfloat16. blas: the path of cuBLASLt, or empty. deterministic: libraries use only "
           "algorithms with one order of sums. compile: a function that returns the image of the "
           "kernel of a traced rule.")
      .def_readonly("deterministic", &PyParameters::deterministic)
      .def(
          "invalidate",
          [](PyParameters& p) {
            const py::gil_scoped_release release;
            const DeviceLock lock(*p.device);
            std::visit([](auto& of) { of.second->invalidate(); }, p.of);
          },
          "Call after the host's arrays were written: the next run uploads them.")
      .def(
          "write",
          [](PyParameters& p, const std::vector<int32_t>& parameters) {
            without_gil([&] {
              const DeviceLock lock(*p.device);
              std::visit([&](auto& of) { of.second->write(parameters); }, p.of);
            });
          },
          py::arg("parameters"),
          "invalidate() for the values of some parameters, which the device does not update.")
      .def(
          "write_rows",
          [](PyParameters& p, int32_t parameter, const py::array& rows, int64_t width) {
            const int32_t* first = data_of<int32_t>(rows, {"rows"}, false);
            const std::vector<int32_t> copy(first, first + rows.size());
            without_gil([&] {
              const DeviceLock lock(*p.device);
              std::visit([&](auto& of) { of.second->write_rows(parameter, copy, width); }, p.of);
            });
          },
          py::arg("parameter"), py::arg("rows"), py::arg("width"),
          "write() for some rows, of `width` elements, of a parameter.")
      .def(
          "download",
          [](PyParameters& p) {
            const py::gil_scoped_release release;
            const DeviceLock lock(*p.device);
            return std::visit([](auto& of) { return of.second->download(); }, p.of);
          },
          "Update the host's arrays: parameters, and states of the last optimiser. True if they "
          "were out of date. DeviceError, changing nothing, if the device fails.")
      .def(
          "lost",
          [](PyParameters& p) {
            return without_gil([&] {
              const auto order = p.device->lock();
              return std::visit([](auto& of) { return of.second->lost(); }, p.of);
            });
          },
          "Number of steps that the host's arrays lack if the device has failed for good, or "
          "None.");
}

void bind_cudnn(py::module_& m) {
  py::class_<Cudnn, std::shared_ptr<Cudnn>>(m, "Cudnn", "cuDNN, which runs LSTMs over chains.")
      .def(py::init([](std::shared_ptr<Device> device, const std::string& library,
                       const std::string& precision, bool wide) {
             const auto rounding = parse<Precision>(precision, {"float32", "tf32"}, "precision");
             const py::gil_scoped_release release;
             const DeviceLock lock(*device);
             return std::make_shared<Cudnn>(device, library, rounding, wide);
           }),
           py::arg("device"), py::arg("library"), py::arg("precision") = "float32",
           py::arg("wide") = false,
           "library: its path. precision of float32 products: float32 or tf32. wide: float64. "
           "DeviceError if it cannot be used.");
}

void bind_step(py::module_& m) {
  py::class_<PyStep, std::shared_ptr<PyStep>>(m, "Step", "A launched training step.")
      .def(
          "wait",
          [](PyStep& x) {
            const Outcome found = without_gil([&] {
              return std::visit([&](auto& of) { return of.second->outcomes().wait(*x.step); },
                                x.parameters->of);
            });
            return std::tuple{found.loss, found.norm, found.ok != 0};
          },
          "Return its loss, the norm of its gradient, and True if it updated the parameters. Waits "
          "for this step, not for later ones.");
}

void bind_executor(py::module_& m) {
  py::class_<PyExecutor> type(m, "Executor",
                              "Runs a program over the schedules of batches on a device.");
  bind_split_step(type);
  type.def(py::init(&make_executor), py::arg("program"), py::arg("parameters"), py::arg("image"),
           py::arg("maps"), py::arg("half") = std::vector<int32_t>{}, py::arg("replay") = "auto",
           py::arg("cudnn") = std::shared_ptr<Cudnn>(), py::arg("persistent_image") = py::bytes(),
           py::arg("persistent") = std::vector<
               std::tuple<int32_t, std::string, int32_t, int32_t, std::vector<int32_t>>>{},
           "image: the compiled generated kernels. maps: (instruction, name of its kernel, threads "
           "that a row occupies). half: buffers stored in bfloat16. replay: which repeated "
           "commands run as a graph: never, auto (where that measures faster) or always. cudnn: "
           "for programs with LSTMs. persistent_image, persistent: kernels that run the narrow "
           "tasks of loops: (stage, name, blocks, bytes of shared memory, instructions).")
      .def(
          "run",
          [](PyExecutor& x, const std::shared_ptr<Schedule>& schedule, const py::list& floats,
             const py::list& ints, uint64_t seed, uint64_t step, double scale,
             const std::vector<double>& totals) {
            RunOptions run{schedule, floats, ints, seed, step, scale, totals};
            return x.visit([&]<class T>(Executor<T>& e) {
              const Inputs<T> inputs = to_inputs<T>(run);
              const double loss = without_gil([&] { return e.run(inputs); });
              warn_of_replay(e.take_trouble());
              return loss;
            });
          },
          py::arg("schedule"), py::arg("float_features"), py::arg("int_features"),
          py::arg("seed") = 0, py::arg("step") = 0, py::arg("scale") = 1.0,
          py::arg("totals") = std::vector<double>{},
          "Run one pass over a batch and return the loss. scale, totals: for a replica's shard of "
          "a global batch, see Count in program.h.")
      .def(
          "launch",
          [](PyExecutor& x, const std::shared_ptr<Schedule>& schedule, const py::list& floats,
             const py::list& ints, uint64_t seed, uint64_t step, const py::dict& optimizer,
             const py::list& states, std::vector<bool> trainable, std::optional<double> max_norm,
             const std::shared_ptr<PyStep>& after) {
            load_program(*x.parameters, optimizer);
            StepOptions options{optimizer, states, std::move(trainable), max_norm};
            RunOptions run{schedule, floats, ints, seed, step, 1, {}};
            return x.visit([&]<class T>(Executor<T>& e) {
              const Inputs<T> inputs = to_inputs<T>(run);
              const Update<T> update = to_update<T>(options, x.parameters->arrays);
              const std::shared_ptr<const void> owner = keep_alive(states);
              const std::shared_ptr<Step> before = after == nullptr ? nullptr : after->step;
              const std::shared_ptr<Step> launched =
                  without_gil([&] { return e.launch(inputs, update, owner, before); });
              warn_of_replay(e.take_trouble());
              return std::make_shared<PyStep>(x.parameters, launched);
            });
          },
          py::arg("schedule"), py::arg("float_features"), py::arg("int_features"), py::arg("seed"),
          py::arg("step"), py::arg("optimizer"), py::arg("states"), py::arg("trainable"),
          py::arg("max_norm") = py::none(), py::arg("after") = py::none(),
          "Launch run() and one update, which go on when the call returns. Nothing is updated if "
          "loss or norm is not finite, or if the step `after` updated nothing.")
      .def(
          "gradient",
          [](PyExecutor& x, int32_t i) {
            const py::array& like = x.parameters->arrays.at(i);
            return x.visit([&]<class T>(Executor<T>& e) -> py::array {
              py::array_t<T> out(
                  std::vector<py::ssize_t>(like.shape(), like.shape() + like.ndim()));
              T* to = out.mutable_data();
              without_gil([&] { e.gradient(i, to); });
              return out;
            });
          },
          py::arg("parameter"), "A copy of the gradient, in the shape of the parameter.")
      .def(
          "gradient_rows",
          [](PyExecutor& x, int32_t i) {
            return x.visit([&]<class T>(Executor<T>& e) -> py::object {
              const auto rows = without_gil([&] { return e.gradient_rows(i); });
              if (!rows) return py::none();
              const auto n = static_cast<py::ssize_t>(rows->first.size());
              const auto width = n == 0 ? 0 : static_cast<py::ssize_t>(rows->second.size()) / n;
              return py::make_tuple(py::array_t<int32_t>(n, rows->first.data()),
                                    py::array_t<T>({n, width}, rows->second.data()));
            });
          },
          py::arg("parameter"), "(rows, values) of a sparse gradient; None if it is dense.")
      .def(
          "output",
          [](PyExecutor& x, int32_t buffer) {
            return x.visit([&]<class T>(Executor<T>& e) -> py::array {
              return to_array(without_gil([&] { return e.output(buffer); }));
            });
          },
          py::arg("buffer"), "A copy of an output in the caller's order; zero rows where absent.")
      .def("report",
           [](PyExecutor& x) {
             py::dict out =
                 to_dict(without_gil([&] { return x.visit([](auto& e) { return e.report(); }); }));
             py::dict parts;
             for (const auto& [name, bytes] :
                  without_gil([&] { return x.visit([](auto& e) { return e.memory(); }); })) {
               parts[name.c_str()] = bytes;
             }
             out["memory"] = parts;
             out["page_locked_bytes"] = without_gil(
                 [&] { return x.visit([](auto& e) { return e.page_locked_bytes(); }); });
             out["replay"] =
                 to_dict(without_gil([&] { return x.visit([](auto& e) { return e.replays(); }); }));
             return out;
           })
      .def(
          "set_tracing",
          [](PyExecutor& x, bool on) {
            without_gil([&] { x.visit([&](auto& e) { e.set_tracing(on); }); });
          },
          py::arg("on"), "Start an empty trace(), or stop it.")
      .def(
          "trace",
          [](PyExecutor& x) {
            py::list out;
            for (const Span& s :
                 without_gil([&] { return x.visit([](auto& e) { return e.trace(); }); })) {
              out.append(py::make_tuple(s.name, s.lane, s.begin, s.end));
            }
            return out;
          },
          "(name, lane, begin, end) since set_tracing, in seconds of Python's time.perf_counter; "
          "lane -1: the host.")
      .def(
          "set_profiling",
          [](PyExecutor& x, bool on) {
            without_gil([&] { x.visit([&](auto& e) { e.set_profiling(on); }); });
          },
          py::arg("on"), "Start (from zero) or stop the clocks of report().")
      .def(
          "clock", [](PyExecutor& x) { without_gil([&] { x.visit([](auto& e) { e.clock(); }); }); },
          "Time the next run, without an update.")
      .def(
          "clocked",
          [](PyExecutor& x) {
            return without_gil([&] { return x.visit([](auto& e) { return e.clocked(); }); });
          },
          "Wait for the timed run and return its seconds on the device; None if there was none.")
      .def(
          "invalidate_parameters",
          [](PyExecutor& x) {
            without_gil([&] { x.visit([](auto& e) { e.invalidate_parameters(); }); });
          },
          "Call after another executor has updated the parameters.");
}

}  // namespace
}  // namespace cavs::cuda

PYBIND11_MODULE(_cuda, m) {
  m.doc() = "The CUDA engine: devices, parameters on them, executors.";
  py::module_::import("cavs._engine");  // Program and Schedule are its classes
  py::register_local_exception_translator(cavs::cuda::translate);
  m.def("sources", &cavs::cuda::sources, "The texts of the kernels, by file name.");
  cavs::cuda::bind_device(m);
  cavs::cuda::bind_parameters(m);
  cavs::cuda::bind_cudnn(m);
  cavs::cuda::bind_step(m);
  cavs::cuda::bind_executor(m);
}
