#include "exec/traffic.h"

#include <algorithm>

#include "exec/bind.h"
#include "exec/spaces.h"

namespace cavs {
namespace {

// From children to parents or back, as gather and its gradient go. What else goes along edges stays
// at one vertex: its own values, and those of the edges below it.
bool is_gather(Array a) {
  return a == Array::kChild || a == Array::kChildren || a == Array::kNthChild ||
         a == Array::kNthLeaf || a == Array::kOut || a == Array::kNthParents ||
         a == Array::kParents;
}

// Values one operand reads through its index or segments, over all rows it is read for. Where the
// index is -1 it reads none.
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

template <class T>
Report::Line traffic(const Program& program, int32_t instruction, const BoundProgram<T>& bound,
                     const Spaces& spaces, const Schedule* schedule, const IndexFeatures& features,
                     const std::vector<Table>& tables) {
  const Instruction& in = program.instructions[instruction];
  Report::Line line;
  line.label = in.label;
  line.kind = instruction_name(in.kind);
  if (schedule == nullptr) return line;
  const int64_t rows = spaces.rows(in.space).size();
  int64_t read = 0, gathered = 0, written = 0;
  const auto count = [&](const Operand& o) {
    const int64_t values = indexed(o, in, spaces, *schedule, features);
    read += values;
    if (is_gather(o.array)) gathered += values;
  };
  for (const Operand& o : in.inputs) count(o);
  for (const MapLoadSpec& l : in.loads) count(l.operand);
  for (const MapStoreSpec& s : in.stores) {
    written += rows * in.outer * (s.mode == StoreMode::kWrite ? in.inner : 1);
  }
  const Bound<T>& b = bound.instructions[instruction];
  if (in.kind == InstructionKind::kMatmul || in.kind == InstructionKind::kMatmulTN) {
    line.flops = 2.0 * static_cast<double>(rows) * static_cast<double>(b.k * b.n);
  }
  if (in.kind == InstructionKind::kLstm) {
    const Weight& w = program.weights[in.weight];
    line.flops = 2.0 * static_cast<double>(rows) * static_cast<double>(w.k * w.n);
  }
  if (in.kind == InstructionKind::kMatmulTN) {
    written = b.k * b.n;
  } else if (in.kind == InstructionKind::kSumRows || in.kind == InstructionKind::kLstmWeightGrad) {
    written = in.out.width;
  } else if (in.kind == InstructionKind::kLookupGrad) {
    for (const Table& table : tables) {
      if (table.param == in.argument2) {
        written = static_cast<int64_t>(table.slots.size()) * table.width;
      }
    }
  } else if (in.kind != InstructionKind::kMap) {
    written = rows * in.out.width;
  }
  line.indexed_bytes = read * static_cast<int64_t>(sizeof(T));
  line.gather_bytes = gathered * static_cast<int64_t>(sizeof(T));
  line.write_bytes = written * static_cast<int64_t>(sizeof(T));
  return line;
}

template Report::Line traffic(const Program&, int32_t, const BoundProgram<float>&, const Spaces&,
                              const Schedule*, const IndexFeatures&, const std::vector<Table>&);
template Report::Line traffic(const Program&, int32_t, const BoundProgram<double>&, const Spaces&,
                              const Schedule*, const IndexFeatures&, const std::vector<Table>&);

}  // namespace cavs
