// Batches of samples with several structures, and their links.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/module.h"
#include "graph/graph.h"

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
  m.def("link_of", &link_of, py::arg("batch"), py::arg("number"),
        "(offsets, vertices of the batch) that each vertex of the target of a link reads.");
}

}  // namespace cavs
