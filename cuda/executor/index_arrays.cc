#include "cuda/executor/index_arrays.h"

#include <algorithm>

#include "exec/index_arrays.h"
#include "exec/spaces.h"

namespace cavs::cuda {
namespace {

bool draws_random_numbers(const Instruction& in) {
  return std::any_of(in.ops.begin(), in.ops.end(),
                     [](const MapOp& op) { return op.code == MapOpcode::kUniform; });
}

// True if the kernel reads an int feature by row; sparse gradients read it by slot.
bool reads_labels(const Instruction& in) {
  const InstructionTraits& traits = traits_of(in);
  return traits.index_limit != nullptr && !traits.sparse_gradient;
}

}  // namespace

IndexArraysOnDevice::IndexArraysOnDevice(const Program& program, size_t sources, size_t loads) {
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
    if (reads_labels(in)) {
      of.array = Array::kIndexFeature;
      of.argument = in.argument;
    } else if (draws_random_numbers(in)) {
      of = numbers_of_rows(in.space);
    }
    instruction_.push_back(of.array == Array::kNone ? -1 : use(of, in.space));
  }
}

int32_t IndexArraysOnDevice::use(const Operand& o, Space space) {
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

void IndexArraysOnDevice::stage(const Schedule& schedule, const IndexFeatures& features,
                                Staging& staging) {
  for (Use& u : uses_) {
    const IndexArrays arrays = index_arrays(u.operand, u.space, schedule, features);
    u.index = staging.add(arrays.index);
    u.offsets = staging.add(arrays.offsets);
  }
}

void IndexArraysOnDevice::resolve(const Staging& staging) {
  for (Use& u : uses_) {
    u.pair = {staging.at<const int32_t>(u.index), staging.at<const int32_t>(u.offsets)};
  }
}

}  // namespace cavs::cuda
