// Binding: the addresses of the instructions of a program in a batch.
#pragma once

#include <span>
#include <vector>

#include "exec/bound.h"
#include "exec/features.h"
#include "exec/plan.h"
#include "schedule/schedule.h"

namespace cavs {

// Addresses of everything that instructions access in a batch.
template <class T>
struct Addresses {
  T* arena;
  const std::vector<Lifetime>* lifetimes;
  const std::vector<T*>* params;
  const std::vector<T*>* grads;
  const std::vector<FloatFeature<T>>* features;
  const T* ones;
  const T* counts;
  const std::vector<const T*>* packed;
  const Schedule* schedule;
  const Spaces* spaces;
  const IndexFeatures* index_features;
  uint64_t seed, step;
};

// The index array or segments that an operand of an instruction over `space` names.
struct IndexArrays {
  std::span<const int32_t> index, offsets;
};
IndexArrays segments_of(const Operand& o,
                        const Schedule& schedule);  // empty if it names no segments
IndexArrays index_arrays(const Operand& o, Space space, const Schedule& schedule,
                         const IndexFeatures& features);

// Bind everything that does not depend on the batch.
template <class T>
void bind_shapes(const Program& program, const Analysis& analysis, BoundProgram<T>& bound,
                 std::vector<Patch>& patches);
// Throws std::invalid_argument if a float feature has the wrong size.
template <class T>
void bind_addresses(const Program& program, const Addresses<T>& at, BoundProgram<T>& bound);

}  // namespace cavs
