// Instructions with their addresses for one batch. Shapes are fixed by the program, so that binding
// a batch allocates nothing, and a thread copies what it needs to change.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/instruction.h"

namespace cavs {

template <class T>
struct Bound {
  InstructionType type;
  const Execution<T>* execution;
  int32_t relation = -1;  // runs over rows related to those of the chunk; see relation_of
  bool accumulate = false;
  int32_t first = 0, count = 0;  // sources
  int32_t split = 0;             // sources [0, split) are the left operand
  int32_t first_load = 0, first_store = 0;
  int32_t first_patch = 0, end_patch = 0;
  Space space = 0;
  T* out = nullptr;
  int64_t stride = 0, base = 0;
  const int32_t* index = nullptr;  // int feature `argument`: labels, or rows of a table
  const T* packed = nullptr;
  int64_t packed_k = 0;  // rows of the packed matrix, which may be larger than the weight
  int64_t k = 0, n = 0;  // see ProductShape
  MapKernel<T> map{};
};

// An operand in scratch: only the thread knows its address, and only the chunk its first row.
struct Patch {
  enum class Target : uint8_t { kSource, kLoad, kStore, kOut } target;
  int32_t relation;  // its rows are related to those of the chunk, or -1
  int32_t at;        // index of the source, load, store or instruction
  int32_t buffer;
  int32_t column;
};

template <class T>
struct BoundProgram {
  std::vector<Bound<T>> instructions;
  std::vector<Source<T>> sources;
  std::vector<MapLoad<T>> loads;
  std::vector<MapStore<T>> stores;
};

}  // namespace cavs
