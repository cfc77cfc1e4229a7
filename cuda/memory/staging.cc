#include "cuda/memory/staging.h"

#include <algorithm>
#include <cstring>

#include "exec/spaces.h"

namespace cavs::cuda {
namespace {

bool random(const Instruction& in) {
  return std::any_of(in.ops.begin(), in.ops.end(),
                     [](const MapOp& op) { return op.code == MapOpcode::kUniform; });
}

// True if the kernel reads an int feature row by row; tables of sparse gradients are staged by
// slot.
bool labelled(const Instruction& in) {
  const InstructionTraits& traits = traits_of(in);
  return traits.index_limit != nullptr && !traits.sparse_gradient;
}

}  // namespace

Staging::Staging(std::shared_ptr<Device> device)
    : device_(std::move(device)), places_{Place(device_), Place(device_)} {}

void Staging::clear() {
  present_ = 1 - present_;
  pieces_.clear();
  bytes_ = 0;
}

int32_t Staging::add(const void* from, size_t bytes) {
  pieces_.push_back({bytes == 0 ? nullptr : from, bytes, bytes_});
  bytes_ += lines(bytes);
  return static_cast<int32_t>(pieces_.size()) - 1;
}

void Staging::reserve() {
  for (Place& each : places_) {  // both: no batch is the largest twice
    each.host.reserve(bytes_);
    each.memory.reserve(bytes_);
  }
}

void Staging::upload() {
  Place& to = place();
  to.copied.synchronize();  // it reads the page-locked memory
  for (const Copied& p : pieces_) {
    if (p.bytes > 0) std::memcpy(to.host.at<char>(p.offset), p.from, p.bytes);
  }
  device_->use_lane(Device::kCopies);
  to.read.wait();
  device_->upload(to.memory.at(), to.host.at<char>(), bytes_);
  to.copied.record();
  device_->use_lane(0);
  to.copied.wait();
}

DeviceArrays::DeviceArrays(const Program& program, size_t sources, size_t loads) {
  source_.reserve(sources);
  load_.reserve(loads);
  const auto indexed = [](const Operand& o) {
    return o.map == RowMap::kIndex || o.map == RowMap::kSegmentSum;
  };
  for (const Instruction& in : program.instructions) {
    for (const Operand& o : in.inputs) source_.push_back(indexed(o) ? use(o, in.space) : -1);
    for (const MapLoadSpec& l : in.loads) {
      load_.push_back(indexed(l.operand) ? use(l.operand, in.space) : -1);
    }
    Operand of{};
    of.array = Array::kNone;
    if (labelled(in)) {
      of.array = Array::kIndexFeature;
      of.argument = in.argument;
    } else if (random(in)) {
      of.array = is_vertex(in.space)    ? Array::kOrder
                 : is_edge(in.space)    ? Array::kEdgeOrder
                 : is_present(in.space) ? Array::kPresentOrder
                                        : Array::kNone;
      if (is_present(in.space)) of.argument = feature_of(in.space);
    }
    instruction_.push_back(of.array == Array::kNone ? -1 : use(of, in.space));
  }
}

int32_t DeviceArrays::use(const Operand& o, Space space) {
  for (size_t i = 0; i < uses_.size(); ++i) {
    const Use& u = uses_[i];
    if (u.operand.array != o.array || u.operand.argument != o.argument) continue;
    if (o.array != Array::kIndexFeature || whole_of(u.space) == whole_of(space)) {
      return static_cast<int32_t>(i);
    }
  }
  uses_.push_back({o, space, -1, -1, {}});
  return static_cast<int32_t>(uses_.size()) - 1;
}

void DeviceArrays::stage(const Schedule& schedule, const IndexFeatures& features,
                         Staging& staging) {
  for (Use& u : uses_) {
    const IndexArrays arrays = index_arrays(u.operand, u.space, schedule, features);
    u.index = staging.add(arrays.index);
    u.offsets = staging.add(arrays.offsets);
  }
}

void DeviceArrays::resolve(const Staging& staging) {
  for (Use& u : uses_) {
    u.pair = {staging.at<const int32_t>(u.index), staging.at<const int32_t>(u.offsets)};
  }
}

template <class T>
SlotRows slots_of_task(const Table& table, const Lookup& lookup, const Source<T>& values,
                       int32_t task, RowRange rows) {
  SlotRows out;
  out.task = task;
  for (int32_t r = rows.begin; r < rows.end; ++r) {
    if (lookup.slot_of[r] >= 0) out.rows.push_back(r);
  }
  std::stable_sort(out.rows.begin(), out.rows.end(),
                   [&](int32_t a, int32_t b) { return lookup.slot_of[a] < lookup.slot_of[b]; });
  for (size_t i = 0; i < out.rows.size(); ++i) {
    const int32_t slot = lookup.slot_of[out.rows[i]];
    const int32_t at = table.dense ? table.slots[slot] : slot;
    if (out.slots.empty() || out.slots.back() != at) {
      out.slots.push_back(at);
      out.offsets.push_back(static_cast<int32_t>(i));
    }
  }
  out.offsets.push_back(static_cast<int32_t>(out.rows.size()));
  if (values.map == RowMap::kIndex) {
    for (int32_t& r : out.rows) r = values.index[r];
  }
  return out;
}

template SlotRows slots_of_task(const Table&, const Lookup&, const Source<float>&, int32_t,
                                RowRange);
template SlotRows slots_of_task(const Table&, const Lookup&, const Source<double>&, int32_t,
                                RowRange);

}  // namespace cavs::cuda
