#include "cuda/lstm/chains.h"

#include <algorithm>
#include <stdexcept>

namespace cavs::cuda {

Chains make_chains(const Schedule& s) {
  struct Sequence {
    int32_t first, length;
  };
  const auto rows = static_cast<int32_t>(s.order.size());
  const auto parent = [&](int32_t row) {
    const int32_t edge = s.out_offsets[row];
    return edge == s.out_offsets[row + 1] ? -1 : s.parent[s.out_edges[edge]];
  };
  std::vector<Sequence> sequences;
  for (int32_t r = 0; r < rows; ++r) {
    const int32_t children = s.edge_offsets[r + 1] - s.edge_offsets[r];
    if (children > 1 || s.out_offsets[r + 1] - s.out_offsets[r] > 1) {
      throw std::invalid_argument("vertex " + std::to_string(s.order[r]) +
                                  " has more than one child or parent: the batch is not of chains");
    }
    if (children > 0) continue;
    int32_t length = 0;
    for (int32_t at = r; at >= 0; at = parent(at)) ++length;
    sequences.push_back({r, length});
  }
  std::stable_sort(sequences.begin(), sequences.end(),
                   [](const Sequence& a, const Sequence& b) { return a.length > b.length; });
  Chains out;
  for (const Sequence& q : sequences) out.lengths.push_back(q.length);
  out.position_of.resize(rows);
  std::vector<int32_t> unfinished;  // current row of each unfinished sequence
  for (const Sequence& q : sequences) unfinished.push_back(q.first);
  for (int32_t step = 0; !unfinished.empty(); ++step) {
    while (!unfinished.empty() && out.lengths[unfinished.size() - 1] <= step) unfinished.pop_back();
    for (int32_t& row : unfinished) {
      out.position_of[row] = out.positions();
      out.row_of.push_back(row);
      row = parent(row);
    }
  }
  return out;
}

}  // namespace cavs::cuda
