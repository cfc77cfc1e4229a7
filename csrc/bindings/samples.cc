#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings/module.h"
#include "graph/sample.h"

namespace py = pybind11;

namespace cavs {
namespace {

constexpr size_t kLine = 64, kPointers = 64;  // bytes; pointers that subclasses add

void fetch(const void* data, size_t bytes) {
  const auto* const begin = static_cast<const std::byte*>(data);
  for (size_t i = 0; i < bytes; i += kLine) __builtin_prefetch(begin + i);
}

bool is_indices(const py::array& array) { return array.dtype().kind() == 'i'; }

std::unique_ptr<Sample> make_sample(const Graph& graph, const std::vector<py::array>& features,
                                    const py::object& kind) {
  std::vector<Sample::Rows> rows;
  for (const py::array& array : features) {
    if (!(array.flags() & py::array::c_style) || array.itemsize() != sizeof(int32_t)) {
      throw py::value_error("features must be C-contiguous arrays of int32 or float32");
    }
    rows.push_back({static_cast<const std::byte*>(array.data()),
                    static_cast<size_t>(array.nbytes()), is_indices(array)});
  }
  return std::make_unique<Sample>(graph, rows, kind.ptr());
}

// Read-only arrays like `features`, which view the sample's copy of them.
py::list views(const Sample& sample, const std::vector<py::array>& features) {
  if (features.size() != sample.columns().size()) {
    throw py::value_error(std::to_string(features.size()) + " features, the sample has " +
                          std::to_string(sample.columns().size()));
  }
  using Block = std::shared_ptr<std::byte[]>;
  const py::capsule owner(new Block(sample.block()),
                          [](void* p) { delete static_cast<Block*>(p); });
  py::list found;
  for (size_t i = 0; i < features.size(); ++i) {
    const py::array& like = features[i];
    if (static_cast<size_t>(like.nbytes()) != sample.columns()[i].bytes) {
      throw py::value_error("feature " + std::to_string(i) + " has " +
                            std::to_string(like.nbytes()) + " bytes, in the sample " +
                            std::to_string(sample.columns()[i].bytes));
    }
    py::array view(like.dtype(), {like.shape(), like.shape() + like.ndim()},
                   sample.columns()[i].data, owner);
    view.attr("setflags")(py::arg("write") = false);
    found.append(view);
  }
  return found;
}

using Arrays = std::vector<py::array>;
using Columns = std::vector<const Sample::Column*>;  // one of each sample, null if it has none
using Numbers = py::array_t<int32_t, py::array::c_style>;

// An array for feature `number` of a batch: rows like those of `like`, or `count` arrays like it.
// count: -1 for as many rows as the samples have.
py::array room_for(const Columns& columns, size_t number, const py::array& like, py::ssize_t count,
                   bool whole) {
  std::vector<py::ssize_t> shape(like.shape() + (whole ? 0 : 1), like.shape() + like.ndim());
  size_t bytes = 0;
  for (const Sample::Column* const column : columns) bytes += column ? column->bytes : 0;
  if (count < 0) {
    py::ssize_t row = like.itemsize();
    for (const py::ssize_t size : shape) row *= size;
    count = row == 0 ? 0 : static_cast<py::ssize_t>(bytes) / row;
  }
  shape.insert(shape.begin(), count);
  py::array room(like.dtype(), shape);
  if (bytes != static_cast<size_t>(room.nbytes())) {
    throw py::value_error("feature " + std::to_string(number) + " has " + std::to_string(bytes) +
                          " bytes in the samples, rows of its shape need " +
                          std::to_string(room.nbytes()));
  }
  return room;
}

// The columns of each of `count` features in all samples. numbers: of the columns of each sample,
// row by row, or null if all samples have the features in order.
std::vector<Columns> columns_of(const std::vector<const Sample*>& samples, size_t count,
                                const int32_t* numbers) {
  std::vector<Columns> found(count, Columns(samples.size(), nullptr));
  for (size_t s = 0; s < samples.size(); ++s) {
    const auto own = samples[s]->columns();
    if (!numbers && own.size() != count)
      throw py::value_error("a sample has " + std::to_string(own.size()) + " features, needs " +
                            std::to_string(count));
    for (size_t i = 0; i < count; ++i) {
      const int64_t number = numbers ? numbers[s * count + i] : static_cast<int64_t>(i);
      if (number < 0) continue;
      if (number >= static_cast<int64_t>(own.size()))
        throw py::value_error("no column " + std::to_string(number) + " in a sample of " +
                              std::to_string(own.size()) + " features");
      found[i][s] = &own[number];
    }
  }
  return found;
}

// Follow each type of pointer for all samples before the pointers behind it: Python would wait for
// each. like: features of vertices, of edges, of the graph and of types of vertices.
py::object collate_samples(const py::list& graphs, const std::array<Arrays, 4>& like,
                           const std::optional<Numbers>& numbers) {
  std::vector<const Sample*> samples;
  for (const py::handle graph : graphs)
    fetch(graph.ptr(), sizeof(py::detail::instance) + kPointers);
  for (const py::handle graph : graphs) {
    if (!py::isinstance<Sample>(graph)) return py::none();
    samples.push_back(graph.cast<const Sample*>());
    fetch(samples.back(), sizeof(Sample));
  }
  size_t count = 0;
  for (const Arrays& arrays : like) count += arrays.size();
  if (numbers && numbers->size() != static_cast<py::ssize_t>(count * samples.size()))
    throw py::value_error(std::to_string(numbers->size()) + " numbers of columns, " +
                          std::to_string(samples.size()) + " samples of " + std::to_string(count) +
                          " features need " + std::to_string(count * samples.size()));
  for (const Sample* const sample : samples) {
    if (!numbers && sample->layout() != samples.front()->layout()) return py::none();
    sample->fetch();
  }
  const std::vector<Columns> columns =
      columns_of(samples, count, numbers ? numbers->data() : nullptr);
  std::vector<GraphView> views;
  for (const Sample* const sample : samples) views.push_back(sample->graph());
  std::vector<bool> absent;
  for (const Columns& one : columns) {
    absent.push_back(std::any_of(one.begin(), one.end(),
                                 [](const Sample::Column* c) { return c && c->absent; }));
  }
  std::shared_ptr<const GraphBatch> batch;
  {
    const py::gil_scoped_release release;
    batch = collate(views);
  }
  const int32_t rows[] = {batch->num_vertices(), batch->num_edges(), batch->num_graphs(), -1};
  Arrays features;
  std::vector<std::byte*> destinations;
  for (size_t i = 0; i < like.size(); ++i) {
    for (const py::array& one : like[i]) {
      const size_t number = features.size();
      features.push_back(room_for(columns[number], number, one, rows[i], i == 2));
      destinations.push_back(static_cast<std::byte*>(features.back().mutable_data()));
    }
  }
  {
    const py::gil_scoped_release release;
    for (size_t i = 0; i < count; ++i) join_columns(columns[i], destinations[i]);
  }
  for (const py::array& feature : features) feature.attr("setflags")(py::arg("write") = false);
  return py::make_tuple(std::const_pointer_cast<GraphBatch>(batch), features, absent);
}

}  // namespace

void bind_samples(py::module_& m) {
  py::class_<Sample>(m, "Sample", "A graph with its features in one block of memory.")
      .def(py::init(&make_sample), py::arg("graph"), py::arg("features"), py::arg("kind"),
           "kind: an object that outlives it; samples of one kind have features of the same "
           "names, types and rows.")
      .def("views", &views, py::arg("features"),
           "Read-only views of its block, like the arrays that it was built from.")
      .def_property_readonly(
          "absences",
          [](const Sample& sample) {
            std::vector<bool> found;
            for (const Sample::Column& column : sample.columns()) found.push_back(column.absent);
            return found;
          },
          "True for each feature with an index of -1.");
  m.def("collate_samples", &collate_samples, py::arg("graphs"), py::arg("features"),
        py::arg("columns") = py::none(),
        "(batch, features, flags of features with absent values) of samples with features like "
        "these, of vertices, edges, graphs and types of vertices. columns: the number of each "
        "feature among the columns of each sample, -1 where it has none; without them, None unless "
        "all are samples of one kind.");
}

}  // namespace cavs
