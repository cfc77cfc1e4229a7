// What Python is told of replays.
#include "cuda/bindings/bindings.h"

namespace cavs::cuda {

py::dict to_dict(const Replays::Report& r) {
  py::list graphs;
  for (const auto& g : r.graphs) {
    py::dict line;
    line["commands"] = g.commands;
    line["decided"] = g.decided;
    line["replayed"] = g.replayed;
    line["direct_seconds"] = g.direct_seconds;
    line["replay_seconds"] = g.replay_seconds;
    graphs.append(std::move(line));
  }
  py::dict out;
  out["runs"] = r.runs;
  out["replays"] = r.replays;
  out["graphs"] = std::move(graphs);
  out["trouble"] = r.trouble;
  return out;
}

// A warning, which no filter can make an error: the step has been launched.
void tell(const std::string& trouble) {
  if (trouble.empty()) return;
  const std::string text = "cavs launches its kernels one by one, without CUDA graphs: " + trouble;
  const py::object category = py::module_::import("cavs.errors").attr("DeviceWarning");
  if (PyErr_WarnEx(category.ptr(), text.c_str(), 1) < 0) PyErr_WriteUnraisable(nullptr);
}

}  // namespace cavs::cuda
