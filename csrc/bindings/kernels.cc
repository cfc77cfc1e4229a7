// The kernel tables on NumPy arrays, one thin wrapper per entry, for tests and benchmarks. Sizes
// are checked only as far as the wrapper itself needs; callers pass valid ranges.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <chrono>
#include <memory>
#include <optional>

#include "base/thread_pool.h"
#include "bindings/module.h"
#include "kernels/dispatch.h"

namespace py = pybind11;

namespace cavs {
namespace {

template <class T>
using Values = py::array_t<T>;
using Indices = py::array_t<int32_t, py::array::c_style>;

// 64-byte aligned elements, as packed weights need.
template <class T>
Values<T> aligned_array(size_t size) {
  const size_t bytes = (size * sizeof(T) + 127) & ~size_t{63};
  void* p = ::operator new(bytes, std::align_val_t{64});
  std::fill_n(static_cast<T*>(p), bytes / sizeof(T), T(0));
  py::capsule owner(p, [](void* q) { ::operator delete(q, std::align_val_t{64}); });
  return Values<T>(static_cast<py::ssize_t>(size), static_cast<T*>(p), owner);
}

template <class T>
std::vector<T> scratch(size_t size) {
  return std::vector<T>(size + 16);
}

// Uninitialised: products are short, and scratch may contain anything.
template <class T>
std::vector<std::unique_ptr<T[]>> scratch_of(int threads, size_t size) {
  if (threads < 1) throw std::invalid_argument("threads must be at least 1");
  std::vector<std::unique_ptr<T[]>> out;
  for (int i = 0; i < threads; ++i) out.push_back(std::make_unique_for_overwrite<T[]>(size + 16));
  return out;
}

template <class T>
int64_t row_stride(const Values<T>& x) {
  if (x.ndim() != 2) throw std::invalid_argument("rows must be a 2-D array");
  if (x.size() == 0) return x.shape(1);  // strides of empty NumPy arrays are undefined
  if (x.shape(1) > 1 && x.strides(1) != sizeof(T))
    throw std::invalid_argument("the columns of a row must be contiguous");
  return x.strides(0) / static_cast<int64_t>(sizeof(T));
}

// A Source and the arrays it points into.
template <class T>
struct BoundSource {
  Values<T> data;
  std::optional<Indices> index, offsets;
  Source<T> source{};

  BoundSource(Values<T> d, RowMap map, int64_t base, std::optional<Indices> i,
              std::optional<Indices> o, int32_t column, std::optional<int32_t> width)
      : data(std::move(d)), index(std::move(i)), offsets(std::move(o)) {
    source.data = data.data() + column;
    source.stride = row_stride(data);
    source.base = base;
    source.index = index ? index->data() : nullptr;
    source.offsets = offsets ? offsets->data() : nullptr;
    source.map = map;
    source.width = width.value_or(static_cast<int32_t>(data.shape(1)) - column);
    if ((map == RowMap::kIndex && !index) || (map == RowMap::kSegmentSum && !offsets))
      throw std::invalid_argument("this row map needs an index or offsets");
  }
};

template <class T>
std::vector<Source<T>> plain(const std::vector<BoundSource<T>>& sources) {
  std::vector<Source<T>> out;
  for (const auto& s : sources) out.push_back(s.source);
  return out;
}

template <class T>
int64_t total_width(const std::vector<Source<T>>& sources) {
  int64_t k = 0;
  for (const auto& s : sources) k += s.width;
  return k;
}

// Rows [begin, end) of both operands of a product of transposed rows.
template <class T>
using BoundPairs =
    std::tuple<std::vector<BoundSource<T>>, std::vector<BoundSource<T>>, int64_t, int64_t>;

template <class T>
struct BoundStore {
  Values<T> data;
  MapStore<T> store;
};

// Run task(t) for t in [0, threads) at once, without the GIL.
template <class F>
void on_threads(int threads, F&& task) {
  const py::gil_scoped_release release;
  thread_pool().parallel(threads, task);
}
int64_t part(int64_t begin, int64_t end, int64_t t, int64_t of) {
  return begin + (end - begin) * t / of;
}

template <class T>
double peak_gflops(const IsaTable<T>& table) {
  double best = 0;
  for (int repeat = 0; repeat < 20; ++repeat)
    best = std::max(best, 2e-9 * multiply_adds_per_second(table, 20000));
  return best;
}

template <class T>
using Part = std::tuple<Values<T>, int64_t, int64_t>;

template <class T>
void bind_typed(py::module_& m, const std::string& dtype) {
  using S = BoundSource<T>;
  using Table = IsaTable<T>;
  py::class_<S>(m, ("Source_" + dtype).c_str())
      .def(py::init<Values<T>, RowMap, int64_t, std::optional<Indices>, std::optional<Indices>,
                    int32_t, std::optional<int32_t>>(),
           py::arg("data").noconvert(), py::arg("map") = RowMap::kSelf, py::arg("base") = 0,
           py::arg("index") = py::none(), py::arg("offsets") = py::none(), py::arg("column") = 0,
           py::arg("width") = py::none());
  py::class_<BoundStore<T>>(m, ("Store_" + dtype).c_str())
      .def(py::init([](Values<T> data, int16_t reg, StoreMode mode, int64_t base,
                       int32_t outer_stride, int32_t column) {
             T* p = data.mutable_data() + column;
             const int64_t stride = row_stride(data);
             return BoundStore<T>{std::move(data), {p, stride, base, outer_stride, mode, reg}};
           }),
           py::arg("data").noconvert(), py::arg("reg"), py::arg("mode") = StoreMode::kWrite,
           py::arg("base") = 0, py::arg("outer_stride") = 0, py::arg("column") = 0);

  py::class_<Table>(m, ("Table_" + dtype).c_str())
      .def_property_readonly("name", [](const Table& t) { return t.kernels.name; })
      .def_property_readonly("panel", [](const Table& t) { return t.kernels.panel; })
      .def_property_readonly("depth", [](const Table& t) { return t.kernels.depth; })
      .def("peak_gflops", &peak_gflops<T>, "The multiply-add ceiling of one core, measured.")
      .def(
          "packed",
          [](const Table& t, int64_t k, int64_t n) {
            return aligned_array<T>(t.kernels.packed_size(k, n));
          },
          py::arg("k"), py::arg("n"))
      .def(
          "pack",
          [](const Table& t, const std::vector<Part<T>>& parts, int64_t k, int64_t n,
             Values<T> packed, int64_t p0, int64_t p1) {
            const int64_t panel = t.kernels.panel, size = sizeof(T);
            std::vector<WeightPart<T>> plain;
            for (const auto& [w, k0, n0] : parts)
              plain.push_back({w.data(), w.strides(0) / size, w.strides(1) / size, w.shape(0),
                               w.shape(1), k0, n0});
            t.kernels.pack(plain.data(), static_cast<int32_t>(plain.size()), k, n, p0,
                           p1 < 0 ? (n + panel - 1) / panel : p1, packed.mutable_data());
          },
          py::arg("parts").noconvert(), py::arg("k"), py::arg("n"), py::arg("packed").noconvert(),
          py::arg("p0") = 0, py::arg("p1") = -1, "parts: of (matrix, its row, its column).")
      .def(
          "matmul",
          [](const Table& t, const std::vector<S>& a, int64_t r0, int64_t r1,
             const Values<T>& packed, int64_t n, Values<T> c, int64_t c_base, bool accumulate,
             int64_t p0, int64_t p1, int repeat, int threads) {
            const auto sources = plain(a);
            const int64_t k = total_width(sources), panel = t.kernels.panel;
            if (p1 < 0) p1 = (n + panel - 1) / panel;
            T* out = c.mutable_data();
            const int64_t stride = row_stride(c);
            auto space = scratch_of<T>(threads, t.kernels.matmul_scratch(k));
            on_threads(threads, [&](int id) {
              int64_t rows[] = {r0, r1}, panels[] = {p0, p1};
              auto& cut = r1 - r0 >= 16 * threads ? rows : panels;
              const int64_t begin = cut[0], end = cut[1];
              cut[0] = part(begin, end, id, threads);
              cut[1] = part(begin, end, id + 1, threads);
              for (int i = 0; i < repeat; ++i)
                t.kernels.matmul(sources.data(), static_cast<int32_t>(sources.size()), rows[0],
                                 rows[1], packed.data(), k, k, n, panels[0], panels[1], out, stride,
                                 c_base, accumulate, space[id].get());
            });
          },
          py::arg("a"), py::arg("r0"), py::arg("r1"), py::arg("packed").noconvert(), py::arg("n"),
          py::arg("c").noconvert(), py::arg("c_base") = 0, py::arg("accumulate") = false,
          py::arg("p0") = 0, py::arg("p1") = -1, py::arg("repeat") = 1, py::arg("threads") = 1,
          "threads: of the pool, each with rows of its own; panels, where rows are few.")
      .def(
          "matmul_tn",
          [](const Table& t, const std::vector<S>& a, const std::vector<S>& b, int64_t r0,
             int64_t r1, Values<T> out, bool accumulate, int64_t n0, int64_t n1, int repeat,
             int threads, const std::vector<BoundPairs<T>>& below) {
            std::vector<std::vector<Source<T>>> sources{plain(a), plain(b)};
            std::vector<std::pair<int64_t, int64_t>> rows{{r0, r1}};
            const int64_t k = total_width(sources[0]), n = total_width(sources[1]);
            const int64_t panel = t.kernels.panel;
            for (const auto& [left, right, begin, end] : below) {
              sources.push_back(plain(left));
              sources.push_back(plain(right));
              rows.emplace_back(begin, end);
              const int64_t high = total_width(sources[sources.size() - 2]);
              const int64_t wide = total_width(sources.back());
              if (high != k || wide != n) {
                throw std::invalid_argument("rows below are " + std::to_string(high) + " and " +
                                            std::to_string(wide) + " wide, those above " +
                                            std::to_string(k) + " and " + std::to_string(n));
              }
            }
            std::vector<RowPairs<T>> pairs;
            for (size_t i = 0; i < rows.size(); ++i) {
              const auto &left = sources[2 * i], &right = sources[2 * i + 1];
              pairs.push_back({left.data(), static_cast<int32_t>(left.size()), right.data(),
                               static_cast<int32_t>(right.size()), rows[i].first, rows[i].second});
            }
            if (n1 < 0) n1 = n;
            const int64_t first = n0 / panel, last = (n1 + panel - 1) / panel;
            T* data = out.mutable_data();
            const int64_t stride = row_stride(out);
            auto space = scratch_of<T>(threads, t.kernels.matmul_tn_scratch(k, n));
            on_threads(threads, [&](int id) {
              const int64_t from = part(first, last, id, threads) * panel;
              const int64_t to = std::min(n1, part(first, last, id + 1, threads) * panel);
              for (int i = 0; i < repeat && from < to; ++i)
                t.kernels.matmul_tn(pairs.data(), static_cast<int32_t>(pairs.size()), k, k, n, from,
                                    to, data, stride, accumulate, space[id].get());
            });
          },
          py::arg("a"), py::arg("b"), py::arg("r0"), py::arg("r1"), py::arg("out").noconvert(),
          py::arg("accumulate") = false, py::arg("n0") = 0, py::arg("n1") = -1,
          py::arg("repeat") = 1, py::arg("threads") = 1,
          py::arg("below") = std::vector<BoundPairs<T>>{},
          "threads: of the pool, each with panels of its own. below: more rows of both operands.")
      .def(
          "map",
          // loads: (source, outer_stride, scalar); ops: (code, dst, a, b, c, imm).
          [](const Table& t, const std::vector<std::tuple<S, int32_t, bool>>& loads,
             const std::vector<std::tuple<MapOpcode, int16_t, int16_t, int16_t, int16_t, double>>&
                 ops,
             const std::vector<BoundStore<T>>& stores, int32_t registers, int32_t outer,
             int32_t inner, int64_t r0, int64_t r1, uint64_t seed, uint64_t step,
             std::optional<Indices> row_ids, int repeat) {
            std::vector<MapLoad<T>> l;
            for (const auto& [s, stride, scalar] : loads) l.push_back({s.source, stride, scalar});
            std::vector<MapOp> o;
            for (const auto& [code, d, a, b, c, imm] : ops) o.push_back({code, d, a, b, c, imm});
            std::vector<MapStore<T>> s;
            for (const auto& store : stores) s.push_back(store.store);
            const MapKernel<T> kernel{l.data(),
                                      o.data(),
                                      s.data(),
                                      static_cast<int32_t>(l.size()),
                                      static_cast<int32_t>(o.size()),
                                      static_cast<int32_t>(s.size()),
                                      registers,
                                      outer,
                                      inner,
                                      seed,
                                      step,
                                      row_ids ? row_ids->data() : nullptr,
                                      nullptr};
            auto space = scratch<T>(t.kernels.map_scratch(kernel));
            for (int i = 0; i < repeat; ++i) t.kernels.map(kernel, r0, r1, space.data());
          },
          py::arg("loads"), py::arg("ops"), py::arg("stores"), py::arg("registers"),
          py::arg("outer"), py::arg("inner"), py::arg("r0"), py::arg("r1"), py::arg("seed") = 0,
          py::arg("step") = 0, py::arg("row_ids") = py::none(), py::arg("repeat") = 1)
      .def(
          "sum_rows",
          [](const Table& t, const S& s, int64_t r0, int64_t r1, Values<T> out, bool accumulate) {
            t.kernels.sum_rows(s.source, r0, r1, out.mutable_data(), accumulate);
          },
          py::arg("source"), py::arg("r0"), py::arg("r1"), py::arg("out").noconvert(),
          py::arg("accumulate") = false)
      .def(
          "segment_max",
          [](const Table& t, const S& s, int64_t r0, int64_t r1, Values<T> out, int64_t base) {
            t.kernels.segment_max(s.source, r0, r1, out.mutable_data(), row_stride(out), base);
          },
          py::arg("source"), py::arg("r0"), py::arg("r1"), py::arg("out").noconvert(),
          py::arg("base") = 0)
      .def(
          "segment_product",
          [](const Table& t, const S& s, int64_t r0, int64_t r1, Values<T> out, int64_t base) {
            t.kernels.segment_product(s.source, r0, r1, out.mutable_data(), row_stride(out), base);
          },
          py::arg("source"), py::arg("r0"), py::arg("r1"), py::arg("out").noconvert(),
          py::arg("base") = 0)
      .def(
          "copy_rows",
          [](const Table& t, const S& s, int64_t r0, int64_t r1, Values<T> out, int64_t base) {
            t.kernels.copy_rows(s.source, r0, r1, out.mutable_data(), row_stride(out), base);
          },
          py::arg("source"), py::arg("r0"), py::arg("r1"), py::arg("out").noconvert(),
          py::arg("base") = 0)
      .def(
          "cross_entropy",
          [](const Table& t, const S& s, const Indices& label, int64_t r0, int64_t r1,
             std::optional<Values<T>> loss, std::optional<Values<T>> grad, int64_t loss_base,
             int64_t grad_base, const S* slope) {
            t.kernels.cross_entropy(
                s.source, slope ? &slope->source : nullptr, label.data(), r0, r1,
                loss ? loss->mutable_data() : nullptr, loss ? row_stride(*loss) : 0, loss_base,
                grad ? grad->mutable_data() : nullptr, grad ? row_stride(*grad) : 0, grad_base);
          },
          py::arg("logits"), py::arg("label"), py::arg("r0"), py::arg("r1"),
          py::arg("loss").noconvert() = py::none(), py::arg("grad").noconvert() = py::none(),
          py::arg("loss_base") = 0, py::arg("grad_base") = 0, py::arg("slope") = py::none())
      .def(
          "update",
          [](const Table& t, OptimizerRule rule, const Values<T>& grad, Values<T> param,
             std::optional<Values<T>> state1, std::optional<Values<T>> state2, double lr,
             double momentum, bool nesterov, double beta1, double beta2, double eps,
             double weight_decay, double grad_scale, double bias1, double bias2) {
            const OptimizerStep step{rule, nesterov,     lr,         momentum, beta1, beta2,
                                     eps,  weight_decay, grad_scale, bias1,    bias2};
            t.kernels.update(step, param.size(), grad.data(), param.mutable_data(),
                             state1 ? state1->mutable_data() : nullptr,
                             state2 ? state2->mutable_data() : nullptr);
          },
          py::arg("rule"), py::arg("grad").noconvert(), py::arg("param").noconvert(),
          py::arg("state1").noconvert() = py::none(), py::arg("state2").noconvert() = py::none(),
          py::arg("lr") = 0.1, py::arg("momentum") = 0.9, py::arg("nesterov") = false,
          py::arg("beta1") = 0.9, py::arg("beta2") = 0.999, py::arg("eps") = 1e-8,
          py::arg("weight_decay") = 0.0, py::arg("grad_scale") = 1.0, py::arg("bias1") = 1.0,
          py::arg("bias2") = 1.0)
      .def(
          "sum_of_squares",
          [](const Table& t, const Values<T>& x) {
            return t.kernels.sum_of_squares(x.data(), x.size());
          },
          py::arg("x").noconvert());
}

// Wait at a barrier `rounds` times; return how often a thread found another one not there yet.
int64_t barrier_faults(ThreadPool& pool, int num_tasks, int rounds) {
  SpinBarrier barrier(num_tasks);
  std::atomic<int64_t> arrivals{0}, faults{0};
  pool.parallel(num_tasks, [&](int) {
    for (int round = 1; round <= rounds; ++round) {
      arrivals.fetch_add(1, std::memory_order_relaxed);
      barrier.wait();
      if (arrivals.load(std::memory_order_relaxed) < int64_t{round} * num_tasks) ++faults;
      barrier.wait();
    }
  });
  return faults;
}

void bind_pool(py::module_& m) {
  py::class_<ThreadPool>(m, "ThreadPool")
      .def(py::init<int>(), py::arg("num_threads"))
      .def("set_num_threads", &ThreadPool::set_num_threads, py::arg("n"),
           py::call_guard<py::gil_scoped_release>())
      .def("use_openmp_of", &ThreadPool::use_openmp_of, py::arg("library"),
           py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("num_threads", &ThreadPool::num_threads)
      .def(
          "parallel",
          [](ThreadPool& pool, int num_tasks, const py::function& task) {
            const py::gil_scoped_release release;
            pool.parallel(num_tasks, [&](int t) {
              const py::gil_scoped_acquire acquire;
              task(t);
            });
          },
          py::arg("num_tasks"), py::arg("task"),
          "Calls task(t) for t in [0, num_tasks), task t on thread t.")
      .def("barrier_faults", &barrier_faults, py::arg("num_tasks"), py::arg("rounds"),
           py::call_guard<py::gil_scoped_release>())
      .def(
          "region_seconds",
          [](ThreadPool& pool, int num_tasks, int regions) {
            const auto start = std::chrono::steady_clock::now();
            for (int i = 0; i < regions; ++i) pool.parallel(num_tasks, [](int) {});
            const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
            return time.count() / regions;
          },
          py::arg("num_tasks"), py::arg("regions"), py::call_guard<py::gil_scoped_release>(),
          "The mean time of an empty region.");
  m.def("thread_pool", &thread_pool, py::return_value_policy::reference,
        "The pool of the process.");
  m.def("default_num_threads", &default_num_threads);
}

}  // namespace

void bind_kernels(py::module_& m) {
  m.def(
      "isa",
      [](const std::string& products) { return kernels<float>(products_named(products)).name; },
      py::arg("products") = name_of(Products::kExact),
      "The instruction set the kernels use; another where it has such products of float32.");
  py::module_ k = m.def_submodule("kernels", "The kernel tables on numpy arrays, for tests.");
  py::enum_<RowMap>(k, "RowMap")
      .value("SELF", RowMap::kSelf)
      .value("ONE", RowMap::kOne)
      .value("INDEX", RowMap::kIndex)
      .value("SEGMENT_SUM", RowMap::kSegmentSum);
  py::enum_<StoreMode>(k, "StoreMode")
      .value("WRITE", StoreMode::kWrite)
      .value("SUM", StoreMode::kSum)
      .value("MAX", StoreMode::kMax);
  py::enum_<OptimizerRule>(k, "OptimizerRule")
      .value("SGD", OptimizerRule::kSgd)
      .value("MOMENTUM", OptimizerRule::kMomentum)
      .value("ADAGRAD", OptimizerRule::kAdagrad)
      .value("ADAM", OptimizerRule::kAdam)
      .value("ADAMW", OptimizerRule::kAdamW);
  py::enum_<MapOpcode> opcode(k, "MapOpcode");
  for (size_t i = 0; i < kNumMapOperations; ++i) {
    std::string name = kMapOperations[i].name;
    for (char& c : name) c = static_cast<char>(std::toupper(c));
    opcode.value(name.c_str(), static_cast<MapOpcode>(i));
  }
  bind_pool(k);
  bind_typed<float>(k, "float32");
  bind_typed<double>(k, "float64");
  k.def("supported_isas", &supported_isas, "Names this build and machine have, best last.");
  k.def("table_float32", &isa_table<float>, py::arg("isa"), py::return_value_policy::reference);
  k.def("table_float64", &isa_table<double>, py::arg("isa"), py::return_value_policy::reference);
  k.def(
      "narrow_tables",
      [] {
        py::dict tables;
        for (const IsaTable<float>& t : narrow_tables())
          tables[t.kernels.name] = py::cast(&t, py::return_value_policy::reference);
        return tables;
      },
      "Tables of float32 with products of narrow numbers that this machine runs, by name.");
  k.def(
      "peak_gflops", [] { return peak_gflops(isa_table<float>(kernels<float>().name)); },
      "The float32 multiply-add ceiling of one core with the chosen instruction set, measured.");
}

}  // namespace cavs
