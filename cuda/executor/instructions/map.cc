// Launches map: the generated kernel of the instruction.
#include <algorithm>

#include "cuda/executor/launchers.h"

namespace cavs::cuda {
namespace {

constexpr unsigned kSmallBlock = 64;

}  // namespace

template <class T>
void Executor<T>::add_map_words(int32_t id, int64_t first_row) {
  const Bound<T>& b = bound_.instructions[id];
  const auto word = [&](const void* p) { words_.push_back(reinterpret_cast<uint64_t>(p)); };
  const auto row_zero = [this](const T* data, int64_t values_before, int32_t buffer) {
    return reinterpret_cast<const T*>(reinterpret_cast<uint64_t>(data) -
                                      static_cast<uint64_t>(values_before) * value_bytes(buffer));
  };
  const Instruction& in = program_->instructions[id];
  for (int32_t i = 0; i < b.map.num_loads; ++i) {
    const size_t load = b.first_load + i;
    const Source<T>& s = bound_.loads[load].source;
    const Operand& o = in.loads[i].operand;
    const Role role = program_->buffers[o.buffer].role;
    const T* data = s.data;
    int64_t base = s.base;
    if (const Place& place = load_place_[load]; place.buffer >= 0) {
      data = scratch(place);
      base = scratch_base(place, first_row);
    }
    if (role != Role::kOnes && role != Role::kCount) data -= o.column;
    word(s.map == RowMap::kOne ? data : row_zero(data, base * s.stride, o.buffer));
    const auto [index, offsets] = arrays_.of_load(load);
    if (s.map == RowMap::kSegmentSum) word(offsets);
    const bool segments_of_rows = o.array == Array::kEdges;
    if (s.map == RowMap::kIndex || (s.map == RowMap::kSegmentSum && !segments_of_rows)) word(index);
  }
  for (int32_t i = 0; i < b.map.num_stores; ++i) {
    const MapStore<T>& s = bound_.stores[b.first_store + i];
    T* data = s.data;
    int64_t base = s.base;
    if (const Place& place = store_place_[b.first_store + i]; place.buffer >= 0) {
      data = scratch(place);
      base = scratch_base(place, first_row);
    }
    word(row_zero(data - in.stores[i].column, base * s.stride, in.stores[i].buffer));
  }
  if (maps_[id].random) {
    word(staging_.at<uint64_t>(draw_at_));
    word(arrays_.of_instruction(id));
  }
}

// The kernel takes the pointers of row 0, in the order that cavs.codegen.cuda lists them; columns
// stand in its text.
template <class T>
void Launchers<T>::map(Executor<T>& e, int32_t id, const LaunchRows& at) {
  const auto& map = e.maps_[id];
  e.words_.clear();
  e.words_.push_back(static_cast<uint64_t>(int64_t{at.rows.begin}));
  e.words_.push_back(static_cast<uint64_t>(int64_t{at.rows.end}));
  e.add_map_words(id, at.first_row);
  e.arguments_.clear();
  for (const uint64_t& w : e.words_) e.arguments_.push_back({&w, sizeof(w)});
  // These kernels run in blocks of any number of warps: small ones reach more multiprocessors.
  const int64_t items = int64_t{at.rows.size()} * map.items;
  const int64_t processors = e.device_->multiprocessors();
  const unsigned threads = items < processors * kBlock ? kSmallBlock : kBlock;
  const auto blocks = std::clamp<int64_t>((items + threads - 1) / threads, 1, processors * 16);
  e.device_->launch_kernel(map.function, Grid{static_cast<unsigned>(blocks)}, e.arguments_,
                           threads);
}

template void Executor<float>::add_map_words(int32_t, int64_t);
template void Executor<double>::add_map_words(int32_t, int64_t);

CAVS_INSTANTIATE_LAUNCHER(map)

}  // namespace cavs::cuda
