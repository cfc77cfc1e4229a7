#include "exec/packing.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <variant>

#include "exec/instruction.h"

namespace cavs {
namespace {

bool in_one_piece(const Weight& w) {
  if (w.pieces.size() != 1) return false;
  const WeightPiece& q = w.pieces[0];
  return q.k0 == 0 && q.n0 == 0 && q.rows == w.k && q.cols == w.n;
}

// Position of `part` in `whole`, if it is a window that starts at a panel and a unit of `depth`
// rows and ends at a unit or at the end of the whole, so that no other row is read.
std::optional<PackedAt> window(const Weight& part, const Weight& whole, int32_t number,
                               int64_t panel, int64_t depth) {
  if (!in_one_piece(whole) || part.k * part.n >= whole.k * whole.n) return std::nullopt;
  const WeightPiece &p = part.pieces[0], &q = whole.pieces[0];
  const int64_t distance = p.offset - q.offset;
  if (p.param != q.param || p.row_stride != q.row_stride || p.col_stride != q.col_stride ||
      distance < 0) {
    return std::nullopt;
  }
  const bool by_row = q.row_stride > q.col_stride;
  const int64_t stride = std::max<int64_t>(by_row ? q.row_stride : q.col_stride, 1);
  const int64_t far = distance / stride, near = distance % stride;
  const PackedAt at{number, by_row ? far : near, by_row ? near : far};
  if ((by_row ? q.col_stride : q.row_stride) != 1 || at.column % panel != 0 ||
      at.row % depth != 0 || (part.k % depth != 0 && at.row + part.k != whole.k) ||
      at.row + part.k > whole.k || at.column + part.n > whole.n) {
    return std::nullopt;
  }
  return at;
}

}  // namespace

std::vector<PackedAt> locate_weights(const std::vector<Weight>& weights, int64_t panel,
                                     int64_t depth) {
  std::vector<PackedAt> found;
  for (size_t i = 0; i < weights.size(); ++i) {
    found.push_back({static_cast<int32_t>(i), 0, 0});
    if (!in_one_piece(weights[i])) continue;
    int64_t largest = 0;  // the largest container also contains the smaller ones
    for (size_t j = 0; j < weights.size(); ++j) {
      const auto at = window(weights[i], weights[j], static_cast<int32_t>(j), panel, depth);
      if (at && weights[j].k * weights[j].n > largest) {
        largest = weights[j].k * weights[j].n;
        found[i] = *at;
      }
    }
  }
  return found;
}

std::vector<bool> packed_by_plan(const Program& program, const Analysis& analysis,
                                 const std::vector<PackedAt>& packed_at, const Plan& plan) {
  std::vector<bool> read(program.weights.size(), false);
  std::vector<bool> seen(analysis.bodies.size(), false);
  const auto note = [&](int32_t id) {
    const Instruction& in = program.instructions[id];
    if (traits_of(in).packed_weight) read[packed_at[in.weight].weight] = true;
  };
  for (const Item& item : plan.items) {
    std::visit(Overloaded{[&](const RunBody& i) {
                            if (seen[i.body]) return;
                            seen[i.body] = true;
                            for (int32_t id : analysis.bodies[i.body].instructions) note(id);
                          },
                          [](const CopyOutputs&) {}, [](const PackWeight&) {},
                          [](const ZeroGradient&) {}, [&](const auto& i) { note(i.instruction); }},
               item);
  }
  return read;
}

}  // namespace cavs
