// map: fused elementwise kernels, which cavs.codegen.cuda generates.
#include <algorithm>

#include "cuda/executor/launchers.h"

namespace cavs::cuda {
namespace {

constexpr unsigned kSmallBlock = 64;

}  // namespace

template <class T>
void Executor<T>::load_maps(const CompiledProgram<T>& compiled) {
  maps_.resize(program_->instructions.size());
  if (compiled.maps.empty()) return;
  module_ = std::make_unique<Module>(device_, compiled.image);
  for (const MapName& m : compiled.maps) {
    const Instruction& in = program_->instructions.at(m.instruction);
    const bool random = std::any_of(in.ops.begin(), in.ops.end(),
                                    [](const MapOp& op) { return op.code == MapOpcode::kUniform; });
    maps_[m.instruction] = {module_->function(m.name), m.items, random};
  }
}

// Append the arguments in the order of cavs.codegen.cuda: pointers to row 0, since the kernel's
// text contains the columns, and the index arrays of loads.
template <class T>
void Executor<T>::add_map_arguments(int32_t id, int64_t first_row,
                                    std::vector<uint64_t>& words) const {
  const Bound<T>& b = bound_.instructions[id];
  const auto add = [&](const void* p) { words.push_back(reinterpret_cast<uint64_t>(p)); };
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
    if (const ScratchOperand& operand = load_scratch_[load]; operand.buffer >= 0) {
      data = scratch(operand);
      base = scratch_base(operand, first_row);
    }
    if (role != Role::kOnes && role != Role::kCount) data -= o.column;
    add(s.map == RowMap::kOne ? data : row_zero(data, base * s.stride, o.buffer));
    const auto [index, offsets] = arrays_.of_load(load);
    if (s.map == RowMap::kSegmentSum) add(offsets);
    const bool segments_of_rows = o.array == Array::kEdges || o.array == Array::kPairs;
    if (s.map == RowMap::kIndex || (s.map == RowMap::kSegmentSum && !segments_of_rows)) add(index);
  }
  for (int32_t i = 0; i < b.map.num_stores; ++i) {
    const MapStore<T>& s = bound_.stores[b.first_store + i];
    T* data = s.data;
    int64_t base = s.base;
    if (const ScratchOperand& operand = store_scratch_[b.first_store + i]; operand.buffer >= 0) {
      data = scratch(operand);
      base = scratch_base(operand, first_row);
    }
    add(row_zero(data - in.stores[i].column, base * s.stride, in.stores[i].buffer));
  }
  if (maps_[id].random) {
    add(staging_.at<uint64_t>(draw_at_));
    add(arrays_.of_instruction(id));
  }
}

template <class T>
void Launchers<T>::map(Executor<T>& e, int32_t id, const LaunchRows& at) {
  const auto& map = e.maps_[id];
  e.words_ = {static_cast<uint64_t>(int64_t{at.rows.begin}),
              static_cast<uint64_t>(int64_t{at.rows.end})};
  e.add_map_arguments(id, at.first_row, e.words_);
  e.arguments_.clear();
  for (const uint64_t& w : e.words_) e.arguments_.push_back({&w, sizeof(w)});
  // Blocks may have any number of warps: small ones reach more multiprocessors.
  const int64_t items = int64_t{at.rows.size()} * map.items;
  const int64_t processors = e.device_->multiprocessors();
  const unsigned threads = items < processors * kBlock ? kSmallBlock : kBlock;
  const auto blocks = std::clamp<int64_t>((items + threads - 1) / threads, 1, processors * 16);
  e.device_->launch_kernel(map.function, Grid{static_cast<unsigned>(blocks)}, e.arguments_,
                           threads);
}

#define CAVS_INSTANTIATE(T)                                        \
  template void Executor<T>::load_maps(const CompiledProgram<T>&); \
  template void Executor<T>::add_map_arguments(int32_t, int64_t, std::vector<uint64_t>&) const;
CAVS_INSTANTIATE(float)
CAVS_INSTANTIATE(double)
#undef CAVS_INSTANTIATE

CAVS_INSTANTIATE_LAUNCHER(map)

}  // namespace cavs::cuda
