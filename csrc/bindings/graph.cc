#include "graph/graph.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/module.h"
#include "graph/merge.h"
#include "schedule/schedule.h"

namespace py = pybind11;

namespace cavs {
namespace {

using Indices = py::array_t<int32_t, py::array::c_style>;
using Masks = py::array_t<uint32_t, py::array::c_style>;

// A read-only numpy view of memory that `owner` keeps alive.
py::array view(const int32_t* data, size_t size, const py::object& owner) {
  py::array_t<int32_t> array(static_cast<py::ssize_t>(size), data, owner);
  array.attr("setflags")(py::arg("write") = false);
  return array;
}

// (offsets, rows) of one array that holds both.
py::tuple segments(const int32_t* offsets, size_t count, const py::object& owner) {
  return py::make_tuple(view(offsets, count + 1, owner),
                        view(offsets + count + 1, static_cast<size_t>(offsets[count]), owner));
}

template <class T>
auto view_of(PooledVector<int32_t> T::* member) {
  return [member](const py::object& self) {
    const auto& values = self.cast<const T&>().*member;
    return view(values.data(), values.size(), self);
  };
}

auto of_all(PooledVector<int32_t> Graph::* member) {
  return [member](const py::object& self) {
    const auto& values = (*self.cast<const GraphBatch&>().all).*member;
    return view(values.data(), values.size(), self);
  };
}

// Rows of a C-contiguous array of any dtype, one per vertex or edge.
std::vector<FeatureColumn> columns(const std::vector<py::array>& arrays, int64_t rows,
                                   const char* name) {
  std::vector<FeatureColumn> result;
  for (const py::array& array : arrays) {
    if (!(array.flags() & py::array::c_style) || array.ndim() == 0 || array.shape(0) != rows) {
      throw py::value_error(std::string(name) + " must be C-contiguous with " +
                            std::to_string(rows) + " rows");
    }
    const auto bytes = static_cast<size_t>(array.nbytes());
    result.push_back({static_cast<const std::byte*>(array.data()),
                      rows == 0 ? 0 : bytes / static_cast<size_t>(rows)});
  }
  return result;
}

auto of_graphs(const int32_t* (Schedule::*found)() const) {
  return [found](const py::object& self) {
    const auto& s = self.cast<const Schedule&>();
    return segments((s.*found)(), s.num_parts(), self);
  };
}
auto of_rows(const int32_t* (Schedule::*found)() const) {
  return [found](const py::object& self) {
    const auto& s = self.cast<const Schedule&>();
    return segments((s.*found)(), s.order.size(), self);
  };
}

py::tuple lists_of(const Graph& graph) {
  auto [offsets, children] = child_lists(graph);
  return py::make_tuple(owned(std::move(offsets)), owned(std::move(children)));
}

PooledVector<int32_t> to_vector(const Indices& array, const char* name) {
  if (array.ndim() != 1) {
    throw py::value_error(std::string(name) + " must have one dimension, found " +
                          std::to_string(array.ndim()));
  }
  return {array.data(), array.data() + array.size()};
}

void check_size(const py::array& array, int64_t needed, const char* name) {
  if (array.ndim() != 1 || array.size() != needed) {
    throw py::value_error(std::string(name) + " must be one-dimensional of " +
                          std::to_string(needed) + " values, found " +
                          std::to_string(array.size()) + " in " + std::to_string(array.ndim()) +
                          " dimensions");
  }
}

// Check that every vertex of `whole` is represented by a vertex of `merged`.
void check_distinct(const Indices& distinct, const GraphBatch& whole, const GraphBatch& merged) {
  check_size(distinct, whole.num_vertices(), "distinct");
  for (py::ssize_t v = 0; v < distinct.size(); ++v) {
    const int32_t found = distinct.data()[v];
    if (found >= 0 && found < merged.num_vertices()) continue;
    throw py::value_error("distinct vertex " + std::to_string(found) + " stands for vertex " +
                          std::to_string(v) + ", there are " +
                          std::to_string(merged.num_vertices()));
  }
}

py::tuple range(const RowRange& rows) { return py::make_tuple(rows.begin, rows.end); }

void bind_graphs(py::module_& m) {
  py::classh<Graph>(m, "Graph", "One input graph in CSR form: vertex v gathers its children.")
      .def(py::init([](const Indices& offsets, const Indices& children) {
             return std::const_pointer_cast<Graph>(
                 make_graph(to_vector(offsets, "offsets"), to_vector(children, "children")));
           }),
           py::arg("offsets"), py::arg("children"))
      .def_property_readonly("num_vertices", &Graph::num_vertices)
      .def_property_readonly("num_edges", &Graph::num_edges)
      .def_readonly("num_levels", &Graph::num_levels)
      .def_property_readonly("offsets", view_of(&Graph::offsets))
      .def_property_readonly("children", view_of(&Graph::children))
      .def_property_readonly("level", view_of(&Graph::level))
      .def_property_readonly(
          "positions",
          [](const Graph& graph) {
            PooledVector<int32_t> found(graph.num_edges());
            for (int32_t v = 0; v < graph.num_vertices(); ++v) {
              for (int32_t e = graph.offsets[v]; e < graph.offsets[v + 1]; ++e)
                found[e] = graph.position_of(e, graph.offsets[v]);
            }
            return owned(std::move(found));
          },
          "Position of each edge among the children of its parent.")
      .def_property_readonly(
          "child_lists", [](const Graph& graph) { return lists_of(graph); },
          "(offsets, children) that the graph can be built from, -1 where a position is empty.")
      .def(
          "children_of",
          [](const Graph& graph, int32_t v) {
            PooledVector<int32_t> found;
            for (int32_t e = graph.offsets.at(v); e < graph.offsets.at(v + 1); ++e) {
              found.resize(graph.position_of(e, graph.offsets[v]), -1);
              found.push_back(graph.children[e]);
            }
            return owned(std::move(found));
          },
          py::arg("vertex"), "Children of a vertex in order, -1 where a position is empty.")
      .def(
          "reversed", [](const Graph& graph) { return reverse_graph(graph); },
          "Reverse every edge, sorted by the original parent and position.")
      .def(py::pickle([](const Graph& graph) { return lists_of(graph); },
                      [](const py::tuple& state) {
                        return std::const_pointer_cast<Graph>(
                            make_graph(to_vector(state[0].cast<Indices>(), "offsets"),
                                       to_vector(state[1].cast<Indices>(), "children")));
                      }));

  py::classh<GraphBatch>(m, "GraphBatch", "Several graphs as one.")
      .def_property_readonly("num_graphs", &GraphBatch::num_graphs)
      .def_readonly("num_structures", &GraphBatch::num_structures)
      .def_property_readonly("num_vertices", &GraphBatch::num_vertices)
      .def_property_readonly("num_edges", &GraphBatch::num_edges)
      .def_property_readonly("chains", [](const GraphBatch& batch) { return batch.all->chains; })
      .def_property_readonly("offsets", of_all(&Graph::offsets))
      .def_property_readonly("children", of_all(&Graph::children))
      .def_property_readonly("child_lists",
                             [](const GraphBatch& batch) { return lists_of(*batch.all); })
      .def_property_readonly(
          "graphs",
          [](const GraphBatch& batch) {
            std::vector<std::shared_ptr<Graph>> graphs;
            for (int32_t g = 0; g < batch.num_parts(); ++g)
              graphs.push_back(std::const_pointer_cast<Graph>(graph_of(batch, g)));
            return graphs;
          },
          "The graphs of the batch, structure by structure.")
      .def_property_readonly(
          "first_empty",
          [](const GraphBatch& batch) {
            const auto& offsets = batch.vertex_offsets;
            const auto found = std::adjacent_find(offsets.begin(), offsets.end());
            return found == offsets.end() ? -1 : static_cast<int64_t>(found - offsets.begin());
          },
          "The number of the first graph without vertices, structure by structure; -1 if there is "
          "none.")
      .def_property_readonly("vertex_offsets", view_of(&GraphBatch::vertex_offsets))
      .def_property_readonly("edge_offsets", view_of(&GraphBatch::edge_offsets));

  m.def(
      "collate",
      [](const std::vector<std::shared_ptr<const Graph>>& graphs) {
        std::vector<GraphView> views;
        for (const auto& graph : graphs) {
          if (!graph) throw GraphError("a batch holds graphs, found none in its list", -1);
          views.push_back(view_of(*graph));
        }
        return graphs.size() == 1 ? batch_of(graphs.front()) : collate(views);
      },
      py::arg("graphs"), "Join graphs into a batch; GraphError without any.");
  m.def(
      "merge_copies",
      [](const std::shared_ptr<const GraphBatch>& batch, const std::vector<py::array>& of_vertices,
         const std::vector<py::array>& of_edges, int32_t child_numbers, bool components) {
        if (child_numbers < 0 || child_numbers > 32) {
          throw py::value_error("child_numbers must be 0 to 32, found " +
                                std::to_string(child_numbers));
        }
        if (components && child_numbers > 0) {
          throw py::value_error("leaves of components are not distinguished by their use");
        }
        const auto vertices = columns(of_vertices, batch->num_vertices(), "of_vertices");
        const auto edges = columns(of_edges, batch->num_edges(), "of_edges");
        MergedGraph merged;
        {
          const py::gil_scoped_release release;
          merged = components ? merge_components(*batch, vertices, edges)
                              : merge_copies(*batch, vertices, edges, child_numbers);
        }
        return py::make_tuple(std::const_pointer_cast<GraphBatch>(merged.graph),
                              owned(std::move(merged.vertex)), owned(std::move(merged.edge)),
                              owned(std::move(merged.distinct)), owned(std::move(merged.copies)),
                              owned(std::move(merged.leaf)));
      },
      py::arg("batch").none(false), py::arg("of_vertices"), py::arg("of_edges"),
      py::arg("child_numbers") = 0, py::arg("components") = false,
      "(the distinct vertices as a batch of one graph, vertex, edge, distinct, copies, leaf), see "
      "csrc/graph/merge.h. components: merge whole components alone.");
}

void bind_schedule(py::module_& m) {
  py::classh<Schedule>(m, "Schedule", "Rows, kinds and batch tasks of a batch.")
      .def_property_readonly("batch", [](const Schedule& s) { return s.batch; })
      .def_readonly("num_levels", &Schedule::num_levels)
      .def_readonly("max_arity", &Schedule::max_arity)
      .def_property_readonly("max_arities", &Schedule::max_arities,
                             "One more than the last position of a child, for each kind.")
      .def_property_readonly(
          "kinds",
          [](const Schedule& s) {
            py::list kinds;
            for (const Kind& kind : s.kinds) {
              kinds.append(py::make_tuple(kind.key, range(kind.rows), range(kind.edges)));
            }
            return kinds;
          },
          "[(key, (first row, end), (first edge row, end))]: with children first, then ascending.")
      .def_property_readonly(
          "tasks",
          [](const Schedule& s) {
            py::list tasks;
            for (const BatchTask& task : s.tasks) {
              tasks.append(
                  py::make_tuple(task.kind, task.level, range(task.rows), range(task.edges)));
            }
            return tasks;
          },
          "[(kind, level, (first row, end), (first edge row, end))], ascending (level, kind).")
      .def_property_readonly("order", view_of(&Schedule::order))
      .def_property_readonly("row", view_of(&Schedule::row))
      .def_property_readonly("edge_order", view_of(&Schedule::edge_order))
      .def_property_readonly("edge_offsets", view_of(&Schedule::edge_offsets))
      .def_property_readonly("child", view_of(&Schedule::child))
      .def_property_readonly("parent", view_of(&Schedule::parent))
      .def_property_readonly(
          "positions",
          [](const Schedule& s) {
            PooledVector<int32_t> found(s.child.size());
            for (size_t e = 0; e < found.size(); ++e)
              found[e] = s.position_of(static_cast<int32_t>(e));
            return owned(std::move(found));
          },
          "Position of the child of each edge row among the children of its parent.")
      .def_property_readonly("out_offsets", view_of(&Schedule::out_offsets))
      .def_property_readonly("out_edges", view_of(&Schedule::out_edges))
      .def_property_readonly("graph_of", view_of(&Schedule::graph_of))
      .def_property_readonly("graph_offsets", view_of(&Schedule::graph_offsets))
      .def_property_readonly("graph_rows", view_of(&Schedule::graph_rows))
      .def(
          "nth_child",
          [](const py::object& self, int32_t k) {
            const auto& s = self.cast<const Schedule&>();
            return view(s.nth_child(k), s.order.size(), self);
          },
          py::arg("k"))
      .def(
          "nth_leaf",
          [](const py::object& self, int32_t k) {
            const auto& s = self.cast<const Schedule&>();
            return view(s.nth_leaf(k), s.order.size(), self);
          },
          py::arg("k"))
      .def(
          "nth_edge",
          [](const py::object& self, int32_t k) {
            const auto& s = self.cast<const Schedule&>();
            return view(s.nth_edge(k), s.order.size(), self);
          },
          py::arg("k"))
      .def(
          "parent_if_nth",
          [](const py::object& self, int32_t k) {
            const auto& s = self.cast<const Schedule&>();
            return view(s.parent_if_nth(k), s.child.size(), self);
          },
          py::arg("k"))
      .def(
          "nth_parents",
          [](const py::object& self, int32_t k) {
            const auto& s = self.cast<const Schedule&>();
            return segments(s.nth_parents(k), s.order.size(), self);
          },
          py::arg("k"), "(offsets, rows) of the parents whose k-th child a row is.")
      .def_property_readonly(
          "out_parents",
          [](const py::object& self) {
            const auto& s = self.cast<const Schedule&>();
            return view(s.out_parents(), s.out_edges.size(), self);
          },
          "Row of the parent of each of out_edges.")
      .def_property_readonly("graph_roots", of_graphs(&Schedule::graph_roots),
                             "(offsets, rows) of the roots of each graph.")
      .def_property_readonly("graph_leaves", of_graphs(&Schedule::graph_leaves),
                             "(offsets, rows) of the leaves of each graph.")
      .def_property_readonly("row_graphs", of_rows(&Schedule::row_graphs),
                             "(offsets, graphs) that each row is a vertex of.")
      .def_property_readonly("root_graphs", of_rows(&Schedule::root_graphs),
                             "(offsets, graphs) that each row is a root of.")
      .def_property_readonly("leaf_graphs", of_rows(&Schedule::leaf_graphs),
                             "(offsets, graphs) that each row is a leaf of.")
      .def(
          "linked_rows",
          [](const py::object& self, int32_t link) {
            const auto& s = self.cast<const Schedule&>();
            if (link < 0 || link >= static_cast<int32_t>(s.batch->links.size())) {
              throw py::index_error("link " + std::to_string(link) + " of " +
                                    std::to_string(s.batch->links.size()));
            }
            return segments(s.linked_rows(link), s.order.size(), self);
          },
          py::arg("link"), "(offsets, rows) of the vertices that each row reads along a link.")
      .def(
          "fewest_tasks",
          [](const Schedule& s, const std::set<int32_t>& kinds) {
            const py::gil_scoped_release release;
            PooledVector<int32_t> of_row(s.row.size(), -1), of_vertex(s.row.size());
            int32_t count = 0;
            for (const int32_t k : kinds) {
              const RowRange rows = s.kinds.at(k).rows;
              std::fill(of_row.begin() + rows.begin, of_row.begin() + rows.end, count++);
            }
            for (size_t v = 0; v < s.row.size(); ++v) of_vertex[v] = of_row[s.row[v]];
            return fewest_tasks(*s.batch->all, of_vertex, count);
          },
          py::arg("kinds"), "A lower bound on the tasks of some kinds by any policy, by number.")
      .def(
          "permute_vertices",
          [](const Schedule& s, const Indices& values) {
            check_size(values, static_cast<int64_t>(s.order.size()), "values");
            return owned(s.permute_vertices(values.data()));
          },
          py::arg("values"))
      .def(
          "permute_edges",
          [](const Schedule& s, const Indices& values) {
            check_size(values, static_cast<int64_t>(s.edge_order.size()), "values");
            return owned(s.permute_edges(values.data()));
          },
          py::arg("values"));

  m.def(
      "presence_masks",
      [](const std::vector<Indices>& features, const std::optional<Indices>& rows,
         const std::optional<Masks>& leaf, const std::vector<int32_t>& child_numbers) {
        if (features.size() + child_numbers.size() > 32) {
          throw py::value_error("at most 32 features may be absent, found " +
                                std::to_string(features.size() + child_numbers.size()));
        }
        for (const int32_t k : child_numbers) {
          if (k < 0 || k > 31) throw py::value_error("no bit " + std::to_string(k) + " in leaf");
        }
        if (!child_numbers.empty() && !leaf) throw py::value_error("child_numbers need leaf");
        if (!rows && !leaf && features.empty()) throw py::value_error("masks of no rows");
        const int64_t vertices = features.empty() ? 0 : features.front().size();
        const int64_t count = rows ? rows->size() : leaf ? leaf->size() : vertices;
        if (leaf) check_size(*leaf, count, "leaf");
        std::vector<const int32_t*> values;
        for (const Indices& feature : features) {
          check_size(feature, rows ? vertices : count, "a feature");
          values.push_back(feature.data());
        }
        for (int64_t r = 0; rows && !features.empty() && r < count; ++r) {
          const int32_t v = rows->data()[r];
          if (v < 0 || v >= vertices) {
            throw py::value_error("row " + std::to_string(r) + " is of vertex " +
                                  std::to_string(v) + ", there are " + std::to_string(vertices));
          }
        }
        return owned<uint32_t>(presence_masks(static_cast<int32_t>(count), values,
                                              rows ? rows->data() : nullptr,
                                              leaf ? leaf->data() : nullptr, child_numbers));
      },
      py::arg("features"), py::arg("rows") = py::none(), py::arg("leaf") = py::none(),
      py::arg("child_numbers") = py::tuple(),
      "uint32 masks of optional features for make_schedule, see csrc/schedule/schedule.h.");

  m.def(
      "make_schedule",
      [](std::shared_ptr<const GraphBatch> batch, const std::optional<Masks>& presence,
         const std::optional<std::pair<std::shared_ptr<const GraphBatch>, Indices>>& merged_from,
         bool by_number, const SchedulingPolicy* policy) {
        if (presence) check_size(*presence, batch->num_vertices(), "presence");
        const uint32_t* masks = presence ? presence->data() : nullptr;
        MergedFrom from;
        if (merged_from) {
          from = {merged_from->first, merged_from->second.data()};
          if (!from.graphs) throw py::type_error("merged from no batch");
          check_distinct(merged_from->second, *from.graphs, *batch);
        }
        const py::gil_scoped_release release;
        return make_schedule(std::move(batch), masks, from, by_number, policy);
      },
      py::arg("batch").none(false), py::arg("presence") = py::none(),
      py::arg("merged_from") = py::none(), py::arg("by_number") = true,
      py::arg("policy") = py::none(),
      "Schedule a batch. presence: uint32[num_vertices] masks of optional features. merged_from: "
      "(the batch that it was merged from, the distinct vertex of each of its vertices). "
      "by_number: sort the rows of a task by which child they are. policy: chooses the kinds; "
      "None: "
      "run level by level.");
}

}  // namespace

void bind_graph(py::module_& m) {
  bind_graphs(m);
  bind_policies(m);
  bind_schedule(m);
}

}  // namespace cavs
