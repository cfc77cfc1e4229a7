#include "bindings/report.h"

#include <pybind11/stl.h>

#include "kernels/dispatch.h"

namespace py = pybind11;

namespace cavs {

// The report as a dict.
py::dict to_dict(const Report& r) {
  const auto lines = [](const std::vector<Report::Line>& from, bool instruction) {
    py::list out;
    for (const Report::Line& line : from) {
      py::dict d;
      d["label"] = line.label;
      d["kind"] = line.kind;
      d["seconds"] = line.seconds;
      if (instruction) {
        d["calls"] = line.calls;
        d["flops"] = line.flops;
        d["indexed_bytes"] = line.indexed_bytes;
        d["gather_bytes"] = line.gather_bytes;
        d["write_bytes"] = line.write_bytes;
      }
      out.append(std::move(d));
    }
    return out;
  };
  double products = 0, maps = 0, other = 0, flops = 0;
  int64_t indexed = 0, gather = 0, write = 0;
  for (const Report::Line& line : r.instructions) {
    (line.flops > 0 ? products : line.kind == "map" ? maps : other) += line.seconds;
    flops += line.flops;
    indexed += line.indexed_bytes;
    gather += line.gather_bytes;
    write += line.write_bytes;
  }
  py::dict d;
  d["arena_bytes"] = r.arena_bytes;
  d["peak_bytes"] = r.peak_bytes;
  d["scratch_bytes"] = r.scratch_bytes;
  d["packed_bytes"] = r.packed_bytes;
  d["runs"] = r.runs;
  d["pack_seconds"] = r.pack_seconds;
  d["update_seconds"] = r.update_seconds;
  d["product_seconds"] = products;
  d["map_seconds"] = maps;
  d["other_seconds"] = other;
  d["flops"] = flops;
  d["indexed_bytes"] = indexed;
  d["gather_bytes"] = gather;
  d["write_bytes"] = write;
  d["tasks"] = r.widths.size();
  d["widths"] = r.widths;
  d["segments"] = r.phases;
  d["shared_segments"] = r.shared_phases;
  d["threads"] = r.threads;
  d["estimated_seconds"] = r.estimated_seconds;
  d["products"] = name_of(r.products);
  d["stages"] = lines(r.stages, false);
  d["instructions"] = lines(r.instructions, true);
  return d;
}

}  // namespace cavs
