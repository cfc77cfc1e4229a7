// The replay cache in reports and warnings.
#include "cuda/bindings/bindings.h"

namespace cavs::cuda {

py::dict to_dict(const ReplayCache::Report& r) {
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

// Warn without raising, even if filters turn warnings into errors: the step has been launched.
void warn_of_replay(const std::string& trouble) {
  if (trouble.empty()) return;
  const std::string text = "cavs launches its kernels one by one, without CUDA graphs: " + trouble;
  const py::object category = py::module_::import("cavs.errors").attr("DeviceWarning");
  if (PyErr_WarnEx(category.ptr(), text.c_str(), 1) < 0) PyErr_WriteUnraisable(nullptr);
}

}  // namespace cavs::cuda
