// Batches of samples with several structures, and their links.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/module.h"
#include "graph/graph.h"
#include "graph/merge.h"

namespace py = pybind11;

namespace cavs {
namespace {

using Indices = py::array_t<int32_t, py::array::c_style>;
// Target and source; for each sample the offsets, or None, and the vertices, or None for all.
using LinkArrays = std::tuple<int32_t, int32_t, std::vector<std::optional<Indices>>,
                              std::vector<std::optional<Indices>>>;

void check_length(const Indices& array, int64_t needed, const char* name) {
  if (array.ndim() == 1 && array.size() == needed) return;
  throw py::value_error(std::string(name) + " must be one-dimensional of " +
                        std::to_string(needed) + " values, found " + std::to_string(array.size()) +
                        " in " + std::to_string(array.ndim()) + " dimensions");
}

// The arrays of a link, with a row for each vertex of its target.
std::vector<LinkPart> parts_of(const GraphBatch& batch, const LinkArrays& link) {
  const auto& [target, source, offsets, vertices] = link;
  const int32_t samples = batch.num_graphs();
  if (std::min(target, source) < 0 || std::max(target, source) >= batch.num_structures) {
    throw py::value_error("a link from structure " + std::to_string(target) + " to " +
                          std::to_string(source) + " of " + std::to_string(batch.num_structures));
  }
  if (offsets.size() != vertices.size() || vertices.size() != static_cast<size_t>(samples)) {
    throw py::value_error("a link of " + std::to_string(vertices.size()) + " samples, there are " +
                          std::to_string(samples));
  }
  std::vector<LinkPart> parts;
  for (int32_t i = 0; i < samples; ++i) {
    const int32_t* const readers = batch.vertex_offsets.data() + target * samples + i;
    const int64_t count = readers[1] - readers[0];
    const int32_t* from = nullptr;
    if (!vertices[i]) {
      parts.push_back({nullptr, nullptr});
      continue;
    }
    if (offsets[i]) {
      check_length(*offsets[i], count + 1, "offsets of a link");
      from = offsets[i]->data();
      if (from[0] != 0 || !std::is_sorted(from, from + count + 1))
        throw py::value_error("offsets of a link must ascend from 0");
    }
    check_length(*vertices[i], from == nullptr ? count : from[count], "vertices of a link");
    parts.push_back({from, vertices[i]->data()});
  }
  return parts;
}

std::shared_ptr<GraphBatch> stack(const std::vector<std::shared_ptr<const GraphBatch>>& structures,
                                  const std::vector<LinkArrays>& links) {
  for (const auto& structure : structures) {
    if (!structure || structure->num_structures != 1 ||
        structure->num_graphs() != structures.front()->num_graphs()) {
      throw py::value_error("each structure is a batch of as many graphs");
    }
  }
  auto batch = stack_structures(structures);
  for (const LinkArrays& link : links) {
    const std::vector<LinkPart> parts = parts_of(*batch, link);
    batch->links.push_back(join_links(*batch, std::get<0>(link), std::get<1>(link), parts));
  }
  return batch;
}

// Batch, vertex and distinct of a structure that is merged; a batch alone of another.
using CopiesArrays =
    std::tuple<std::shared_ptr<const GraphBatch>, std::optional<Indices>, std::optional<Indices>>;

void check_vertices(const Indices& vertices, int32_t most, const char* name) {
  for (py::ssize_t i = 0; i < vertices.size(); ++i) {
    if (vertices.data()[i] >= 0 && vertices.data()[i] < most) continue;
    throw py::value_error(std::string(name) + " holds " + std::to_string(vertices.data()[i]) +
                          " of " + std::to_string(most) + " vertices");
  }
}

py::tuple merge(const GraphBatch& samples, const std::vector<CopiesArrays>& structures) {
  if (structures.size() != static_cast<size_t>(samples.num_structures)) {
    throw py::value_error(std::to_string(structures.size()) + " structures, the samples have " +
                          std::to_string(samples.num_structures));
  }
  std::vector<StructureCopies> copies;
  for (const auto& [graph, vertex, distinct] : structures) {
    const auto s = static_cast<int32_t>(copies.size());
    const int32_t count = samples.first_vertex(s + 1) - samples.first_vertex(s);
    if (!graph || vertex.has_value() != distinct.has_value())
      throw py::value_error("a structure is a batch, with both arrays or none");
    copies.push_back({graph});
    if (vertex) {
      check_length(*vertex, graph->num_vertices(), "vertex");
      check_length(*distinct, count, "distinct");
      check_vertices(*vertex, count, "vertex");
      check_vertices(*distinct, graph->num_vertices(), "distinct");
      copies.back() = {graph, vertex->data(), distinct->data()};
    } else if (graph->num_vertices() != count) {
      throw py::value_error("a structure of " + std::to_string(graph->num_vertices()) +
                            " vertices, the samples have " + std::to_string(count));
    }
  }
  MergedStructures merged = merge_structures(samples, copies);
  return py::make_tuple(merged.graph, owned(std::move(merged.distinct)));
}

// (offsets, vertices) of a link, which the batch keeps alive.
py::tuple link_of(const py::object& self, int32_t number) {
  const auto& links = self.cast<const GraphBatch&>().links;
  if (number < 0 || number >= static_cast<int32_t>(links.size())) {
    throw py::index_error("link " + std::to_string(number) + " of " + std::to_string(links.size()));
  }
  const auto view = [&](const PooledVector<int32_t>& values) {
    py::array_t<int32_t> array(static_cast<py::ssize_t>(values.size()), values.data(), self);
    array.attr("setflags")(py::arg("write") = false);
    return array;
  };
  return py::make_tuple(view(links[number].offsets), view(links[number].vertices));
}

}  // namespace

void bind_structures(py::module_& m) {
  m.def(
      "stack_structures", &stack, py::arg("structures"), py::arg("links") = py::tuple(),
      "Join the structures of samples, a batch each, structure by structure. links: (target, "
      "source, offsets or None for each sample, vertices or None for each sample; both None: every "
      "vertex of the target reads all of the source).");
  m.def("merge_structures", &merge, py::arg("samples"), py::arg("structures"),
        "(a batch of one graph for each structure, the vertex of it that represents each vertex of "
        "the samples). structures: (batch of the vertices that run, and where they are distinct "
        "vertices the arrays vertex and distinct of merge_copies, else None and None).");
  m.def("link_of", &link_of, py::arg("batch"), py::arg("number"),
        "(offsets, vertices of the batch) that each vertex of the target of a link reads.");
}

}  // namespace cavs
