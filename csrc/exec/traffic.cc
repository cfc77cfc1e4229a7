#include "exec/traffic.h"

#include <algorithm>

#include "exec/index_arrays.h"
#include "exec/names.h"
#include "exec/spaces.h"

namespace cavs {
namespace {

// True for arrays that lead from children to parents or back, as gather and its gradient. Other
// arrays along edges stay at one vertex: its own values and those of its edges.
bool is_gather(Array a) {
  return a == Array::kChild || a == Array::kChildren || a == Array::kNthChild ||
         a == Array::kNthLeaf || a == Array::kOut || a == Array::kNthParents ||
         a == Array::kParents;
}

// Number of values that an operand reads through its index or segments, over all rows. An index of
// -1 reads none.
int64_t indexed(const Operand& o, const Instruction& in, const Spaces& spaces, const Schedule& s,
                const IndexFeatures& features) {
  const Space space = in.space;
  const RowRange rows = spaces.rows(space);
  if (is_of_parents(in, o)) {
    return int64_t{s.out_offsets[rows.end] - s.out_offsets[rows.begin]} * o.width;
  }
  if (o.map == RowMap::kIndex) {
    const auto index = index_arrays(o, space, s, features).index;
    int64_t found = 0;
    for (size_t r = rows.begin; r < std::min<size_t>(rows.end, index.size()); ++r) {
      found += index[r] >= 0;
    }
    return found * o.width;
  }
  if (o.map != RowMap::kSegmentSum || rows.size() == 0) return 0;
  const auto offsets = segments_of(o, s).offsets;
  return int64_t{offsets[rows.end] - offsets[rows.begin]} * o.width;
}

}  // namespace

Report::Line report_line(const Program& program, int32_t instruction, size_t element,
                         const Spaces& spaces, const Schedule* schedule,
                         const IndexFeatures& features, const std::vector<Table>& tables) {
  const Instruction& in = program.instructions[instruction];
  Report::Line line;
  line.label = in.label;
  line.kind = name_of(in.type);
  if (schedule == nullptr) return line;
  const int64_t rows = spaces.rows(in.space).size();
  int64_t read = 0, gathered = 0;
  each_operand(in, [&](const Operand& o) {
    const int64_t values = indexed(o, in, spaces, *schedule, features);
    read += values;
    if (is_gather(o.array)) gathered += values;
  });
  const auto traffic_of = traits_of(in).traffic;
  const auto [flops, written] = traffic_of == nullptr ? Traffic{0, rows * in.out.width}
                                                      : traffic_of({program, rows, tables}, in);
  line.flops = flops;
  line.indexed_bytes = read * static_cast<int64_t>(element);
  line.gather_bytes = gathered * static_cast<int64_t>(element);
  line.write_bytes = written * static_cast<int64_t>(element);
  return line;
}

}  // namespace cavs
