#include "exec/host_io.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

#include "exec/spaces.h"

namespace cavs {

template <class T>
void fill_counts(const Inputs<T>& inputs, const IndexFeatures& index, T* counts) {
  const int32_t features = index.num_features();
  const Schedule& schedule = *inputs.schedule;
  counts[kScale] = static_cast<T>(inputs.scale);
  counts[kGraphRows] = static_cast<T>(schedule.num_graphs());
  const int32_t structures = schedule.batch->num_structures;
  for (int32_t s = 0; s < structures; ++s) {
    counts[kVertexRows - 2 * s] = static_cast<T>(schedule.rows_of(s).size());
    counts[kEdgeRows - 2 * s] = static_cast<T>(schedule.edges_of(s).size());
  }
  for (int32_t i = 0; i < features; ++i) counts[i] = static_cast<T>(index.count(i));
  if (inputs.totals.empty()) return;
  // Graphs, vertices and edges of each structure, and values present of each feature.
  const int32_t rows = 1 + 2 * structures;
  if (inputs.totals.size() < static_cast<size_t>(rows + features)) {
    throw std::invalid_argument(std::to_string(inputs.totals.size()) +
                                " totals, the program needs " + std::to_string(rows + features));
  }
  for (int32_t i = 0; i < rows; ++i) counts[kGraphRows - i] = static_cast<T>(inputs.totals[i]);
  for (int32_t i = 0; i < features; ++i) counts[i] = static_cast<T>(inputs.totals[rows + i]);
}

template <class T>
void check_update(const Update<T>& update, size_t parameters) {
  if (!update.scales.empty() && update.scales.size() != parameters) {
    throw std::invalid_argument("scales of " + std::to_string(update.scales.size()) +
                                " parameters, the program has " + std::to_string(parameters));
  }
  if (update.trainable.size() == parameters && update.states.size() == parameters) return;
  throw std::invalid_argument("states of " + std::to_string(update.states.size()) +
                              " parameters, " + std::to_string(update.trainable.size()) +
                              " trainable flags, the program has " + std::to_string(parameters) +
                              " parameters");
}

template <class T>
void cut_piece(const GradientPiece<T>& p, int64_t most, std::vector<GradientPiece<T>>& out) {
  const int64_t each = std::max<int64_t>(1, most / p.width);
  for (int64_t i = 0; i < p.count; i += each) {
    GradientPiece<T> q = p;
    q.values = p.values + i * p.width;
    q.rows = p.rows ? p.rows + i : nullptr;
    q.count = std::min(each, p.count - i);
    q.offset = p.rows ? p.offset : p.offset + i * p.stride;
    out.push_back(q);
  }
}

template <class T>
void check_pieces(const std::vector<GradientPiece<T>>& pieces, const std::vector<int64_t>& sizes) {
  for (const GradientPiece<T>& p : pieces) {
    const auto known = p.param >= 0 && p.param < static_cast<int32_t>(sizes.size());
    if (!known) throw std::out_of_range("parameter " + std::to_string(p.param));
    if (p.count == 0) continue;
    int64_t last = p.count - 1, first = 0;
    if (p.rows != nullptr) {
      const auto [low, high] = std::minmax_element(p.rows, p.rows + p.count);
      first = *low, last = *high;
    }
    const int64_t room = sizes[p.param] - p.offset - p.width;  // after the first row
    if (p.width < 1 || p.stride < p.width || p.offset < 0 || first < 0 || room < 0 ||
        last > room / p.stride) {
      throw std::out_of_range("rows " + std::to_string(first) + " to " + std::to_string(last) +
                              " of " + std::to_string(p.stride) + " elements from element " +
                              std::to_string(p.offset) + " of parameter " +
                              std::to_string(p.param) + ", which has " +
                              std::to_string(sizes[p.param]));
    }
  }
}

std::pair<int64_t, int64_t> output_shape(const Program& program, const Spaces& spaces,
                                         int32_t buffer) {
  const std::vector<int32_t>& outputs = program.outputs;
  if (std::find(outputs.begin(), outputs.end(), buffer) == outputs.end()) {
    throw std::out_of_range("buffer " + std::to_string(buffer) + " is no output of the program");
  }
  const Buffer& b = program.buffers[buffer];
  Space all = b.space;  // rows of vertices, edges or pairs of all kinds
  if (is_pairs(all)) {
    all = whole_of(all);
  } else if (is_vertex(all) || is_edge(all)) {
    const Space first = is_vertex(all) ? kVertexStructure0 : kEdgeStructure0;
    all = first + 2 * structure_of(program, all);
  }
  return {spaces.rows(all).size(), b.width};
}

const int32_t* order_of(const Program& program, const Schedule& schedule, int32_t buffer) {
  const Space space = program.buffers[buffer].space;
  return is_vertex(space)  ? schedule.order.data()
         : is_edge(space)  ? schedule.edge_order.data()
         : is_pairs(space) ? schedule.pair_order(link_number(space))
                           : nullptr;
}

template <class T>
void to_caller(const Program& program, const Spaces& spaces, const Schedule& schedule,
               int32_t buffer, const T* values, T* out) {
  const auto [rows, width] = output_shape(program, spaces, buffer);
  const Buffer& b = program.buffers[buffer];
  const RowRange range = spaces.rows(b.space);
  if (range.size() != rows) std::fill_n(out, rows * width, T(0));
  const int32_t* const order = order_of(program, schedule, buffer);
  for (int32_t r = range.begin; r < range.end; ++r, values += width) {
    std::copy_n(values, width, out + (order ? order[r] : r) * width);
  }
}

std::vector<int32_t> slots_by_row(const Table& table) {
  std::vector<int32_t> slots(table.slots.size());
  std::iota(slots.begin(), slots.end(), 0);
  std::sort(slots.begin(), slots.end(),
            [&](int32_t a, int32_t b) { return table.slots[a] < table.slots[b]; });
  return slots;
}

#define CAVS_INSTANTIATE(T)                                                                      \
  template void fill_counts(const Inputs<T>&, const IndexFeatures&, T*);                         \
  template void check_update(const Update<T>&, size_t);                                          \
  template void cut_piece(const GradientPiece<T>&, int64_t, std::vector<GradientPiece<T>>&);     \
  template void check_pieces(const std::vector<GradientPiece<T>>&, const std::vector<int64_t>&); \
  template void to_caller(const Program&, const Spaces&, const Schedule&, int32_t, const T*, T*);
CAVS_INSTANTIATE(float)
CAVS_INSTANTIATE(double)
#undef CAVS_INSTANTIATE

}  // namespace cavs
