// Policies of batching.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <bit>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/module.h"
#include "schedule/learn_policy.h"
#include "schedule/schedule.h"

namespace py = pybind11;

namespace cavs {
namespace {

SchedulingPolicy make_policy(std::vector<uint64_t> kinds,
                             std::unordered_map<uint64_t, int32_t> choices) {
  const auto most = static_cast<int32_t>(kinds.size());
  if (most > 64) throw py::value_error("at most 64 kinds, found " + std::to_string(most));
  for (const auto& [ready, kind] : choices) {
    const bool known =
        kind >= 0 && kind < most && static_cast<int32_t>(std::bit_width(ready)) <= most;
    if (known && (ready >> kind & 1) != 0) {
      continue;
    }
    throw py::value_error("the choice " + std::to_string(kind) + " is none of the set " +
                          std::to_string(ready) + " of " + std::to_string(most) + " kinds");
  }
  return {std::move(kinds), std::move(choices)};
}

using PresenceMasks = py::array_t<uint32_t, py::array::c_style>;

}  // namespace

void bind_policies(py::module_& m) {
  py::classh<SchedulingPolicy>(m, "SchedulingPolicy",
                               "Chooses the next kind among those with ready vertices.")
      .def(
          py::init(&make_policy), py::arg("kinds") = std::vector<uint64_t>{},
          py::arg("choices") = std::unordered_map<uint64_t, int32_t>{},
          "choices: for sets of ready kinds, as bits, the number of the one to run. Other sets run "
          "the kind whose remaining vertices have the least mean level.")
      .def_readonly("kinds", &SchedulingPolicy::kinds)
      .def_readonly("choices", &SchedulingPolicy::choices);

  m.def(
      "learn_policy",
      [](const GraphBatch& batch, const std::optional<PresenceMasks>& presence, uint64_t seed) {
        if (presence && (presence->ndim() != 1 || presence->size() != batch.num_vertices())) {
          throw py::value_error("presence has " + std::to_string(presence->size()) + " masks for " +
                                std::to_string(batch.num_vertices()) + " vertices");
        }
        const py::gil_scoped_release release;
        const Kinds kinds = classify(batch, presence ? presence->data() : nullptr);
        LearnedPolicy found = learn_policy(KindedGraph(*batch.all, kinds), seed);
        return std::tuple(std::move(found.policy), found.tasks, found.bound, found.episodes);
      },
      py::arg("batch"), py::arg("presence") = py::none(), py::arg("seed") = 0,
      "(policy, tasks, bound, episodes) from a batch and its masks, see learn_policy.h.");
}

}  // namespace cavs
