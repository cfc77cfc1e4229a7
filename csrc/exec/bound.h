// Instructions with their addresses for one batch. Shapes are fixed by the program, so that binding
// a batch allocates nothing and a thread copies what it needs to change.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/program.h"

namespace cavs {

template <class T>
struct Bound {
  InstructionKind kind;
  bool edges = false;  // of the chunk's rows
  bool accumulate = false;
  int32_t first = 0, count = 0;  // sources, or loads of a map
  int32_t split = 0;             // kMatmulTN: sources of A
  int32_t first_store = 0;       // kMap
  int32_t first_patch = 0, end_patch = 0;
  Space space = 0;
  T* out = nullptr;
  int64_t stride = 0, base = 0;
  const int32_t* index = nullptr;  // labels, looked up rows
  const T* packed = nullptr;
  int64_t packed_k = 0;  // rows of the packed matrix, of which this may be part
  int64_t k = 0, n = 0;
  MapKernel<T> map{};
};

// A scratch operand: its address is known to the thread only, its first row to the chunk.
struct Patch {
  enum class Place : uint8_t { kSource, kLoad, kStore, kOut } place;
  bool edges;  // its rows are the edges of the chunk's rows
  int32_t at;  // number of the source, load, store or instruction
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
