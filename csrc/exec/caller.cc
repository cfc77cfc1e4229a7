#include "exec/caller.h"

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
  counts[kGraphRows] = static_cast<T>(schedule.batch->num_graphs());
  counts[kVertexRows] = static_cast<T>(schedule.order.size());
  counts[kEdgeRows] = static_cast<T>(schedule.edge_order.size());
  for (int32_t i = 0; i < features; ++i) counts[i] = static_cast<T>(index.count(i));
  if (inputs.totals.empty()) return;
  if (inputs.totals.size() < static_cast<size_t>(features) + 3) {
    throw std::invalid_argument(std::to_string(inputs.totals.size()) +
                                " totals, the program needs " + std::to_string(features + 3));
  }
  for (int32_t i = 0; i < 3; ++i) counts[kGraphRows - i] = static_cast<T>(inputs.totals[i]);
  for (int32_t i = 0; i < features; ++i) counts[i] = static_cast<T>(inputs.totals[i + 3]);
}

template <class T>
void check_update(const Update<T>& update, size_t parameters) {
  if (update.trainable.size() == parameters && update.states.size() == parameters) return;
  throw std::invalid_argument("states of " + std::to_string(update.states.size()) +
                              " parameters, " + std::to_string(update.trainable.size()) +
                              " trainable flags, the program has " + std::to_string(parameters) +
                              " parameters");
}

std::pair<int64_t, int64_t> output_shape(const Program& program, const Spaces& spaces,
                                         int32_t buffer) {
  const std::vector<int32_t>& outputs = program.outputs;
  if (std::find(outputs.begin(), outputs.end(), buffer) == outputs.end()) {
    throw std::out_of_range("buffer " + std::to_string(buffer) + " is no output of the program");
  }
  const Buffer& b = program.buffers[buffer];
  const Space all = is_vertex(b.space) ? kVertexSpace : is_edge(b.space) ? kEdgeSpace : b.space;
  return {spaces.ranges[all].size(), b.width};
}

template <class T>
void to_caller(const Program& program, const Spaces& spaces, const Schedule& schedule,
               int32_t buffer, const T* values, T* out) {
  const auto [rows, width] = output_shape(program, spaces, buffer);
  const Buffer& b = program.buffers[buffer];
  const RowRange range = spaces.ranges[b.space];
  if (range.size() != rows) std::fill_n(out, rows * width, T(0));
  const int32_t* order = is_vertex(b.space) ? schedule.order.data()
                         : is_edge(b.space) ? schedule.edge_order.data()
                                            : nullptr;
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

#define CAVS_INSTANTIATE(T)                                              \
  template void fill_counts(const Inputs<T>&, const IndexFeatures&, T*); \
  template void check_update(const Update<T>&, size_t);                  \
  template void to_caller(const Program&, const Spaces&, const Schedule&, int32_t, const T*, T*);
CAVS_INSTANTIATE(float)
CAVS_INSTANTIATE(double)
#undef CAVS_INSTANTIATE

}  // namespace cavs
