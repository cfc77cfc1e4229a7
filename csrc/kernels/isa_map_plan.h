// Decisions of a map kernel call before its first block: how many lines a block has, which loads
// are read in place, which operations may write straight to memory. A line is one (row, outer
// index) pair; a block is a piece of one line, or several whole lines.
#pragma once

#include "kernels/isa_source.h"

namespace cavs::CAVS_ISA {
namespace {

// Scratch of one register: a block, and room for the vector that starts at its last value.
template <class T>
constexpr int64_t kRegisterSize = kMapBlock + kLanes<T>;

enum class LoadPlan : int32_t {
  kInPlace,    // the register points into the source
  kOnce,       // the same for every block: read at the first
  kEveryLine,  // a scalar broadcast along its line: read at the beginning of a line
  kEveryBlock,
};
template <class T>
struct PlannedLoad {
  const T* origin;  // kInPlace: row r of the source is at origin + r * row_stride
  int64_t row_stride;
  LoadPlan plan;
};

template <class T>
struct MapPlan {
  const T** reg;  // register -> its block
  T** target;     // store -> address of the first line of the current block
  PlannedLoad<T>* load;
  int32_t* through;  // op -> the store that it may write straight into, or one of:
  int32_t* writer;   // register -> the last op that writes it, or kNoOp
  int32_t* reader;   // load -> the last op that reads it, num_ops if a store does, or kNoOp
  T* registers;
  int64_t lines;  // lines of a full block
  bool disjoint;  // no store is known to touch what a load reads

  T* block(int64_t reg_index) const { return registers + reg_index * kRegisterSize<T>; }
};
constexpr int32_t kNoStore = -1;
constexpr int32_t kOverwritten = -2;  // a later op writes the same register
constexpr int32_t kDone = -3;         // a constant, filled once for the whole call
constexpr int32_t kNoOp = -1;

template <class T>
CAVS_INLINE int64_t map_registers(const MapKernel<T>& kernel) {
  return larger(kernel.num_registers, kernel.num_loads);
}

template <class T>
size_t map_scratch(const MapKernel<T>& kernel) {
  const int64_t bytes = (sizeof(T*) + sizeof(int32_t)) * map_registers(kernel) +
                        sizeof(T*) * kernel.num_stores + sizeof(int32_t) * kernel.num_ops +
                        (sizeof(PlannedLoad<T>) + sizeof(int32_t)) * kernel.num_loads + 64;
  return static_cast<size_t>(map_registers(kernel) * kRegisterSize<T> +
                             ceil_div(bytes, static_cast<int64_t>(sizeof(T))));
}

template <class T>
MapPlan<T> carve(const MapKernel<T>& kernel, T* scratch) {
  MapPlan<T> plan{};
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(scratch) + 63) & ~uintptr_t{63};
  plan.registers = reinterpret_cast<T*>(begin);
  uintptr_t next = reinterpret_cast<uintptr_t>(plan.block(map_registers(kernel)));
  const auto take = [&]<class U>(U*& array, int64_t count) {
    array = reinterpret_cast<U*>(next);
    next += static_cast<uintptr_t>(count) * sizeof(*array);
  };
  take(plan.reg, map_registers(kernel));
  take(plan.target, kernel.num_stores);
  take(plan.load, kernel.num_loads);
  take(plan.through, kernel.num_ops);
  take(plan.writer, map_registers(kernel));
  take(plan.reader, kernel.num_loads);
  return plan;
}

// True if the values of consecutive lines are contiguous.
template <class T>
CAVS_INLINE bool lines_contiguous(const MapKernel<T>& kernel, int64_t stride,
                                  int64_t outer_stride) {
  return stride == static_cast<int64_t>(kernel.outer) * kernel.inner &&
         (kernel.outer == 1 || outer_stride == kernel.inner);
}
template <class T>
CAVS_INLINE bool is_scalar(const MapKernel<T>& kernel, const MapLoad<T>& load) {
  return load.scalar && kernel.inner > 1;
}
template <class T>
CAVS_INLINE bool is_dense(const MapKernel<T>& kernel, const MapLoad<T>& load) {
  return load.source.map == RowMap::kSelf && !is_scalar(kernel, load) &&
         lines_contiguous(kernel, load.source.stride, load.outer_stride);
}
template <class T>
CAVS_INLINE bool is_dense(const MapKernel<T>& kernel, const MapStore<T>& store) {
  return store.mode == StoreMode::kWrite &&
         lines_contiguous(kernel, store.stride, store.outer_stride);
}
// True if every line loads the same values.
template <class T>
CAVS_INLINE bool is_uniform(const MapKernel<T>& kernel, const MapLoad<T>& load) {
  return load.source.map == RowMap::kOne && (kernel.outer == 1 || load.outer_stride == 0);
}

// Number of lines per block: several if that costs no copy, or if lines are very narrow.
template <class T>
int64_t lines_of_block(const MapKernel<T>& kernel) {
  if (kernel.inner > kMapBlock / 2 || kernel.segments != nullptr) return 1;
  bool free = true;
  for (int i = 0; i < kernel.num_loads; ++i)
    free = free && (is_dense(kernel, kernel.loads[i]) || is_uniform(kernel, kernel.loads[i]));
  for (int i = 0; i < kernel.num_stores; ++i)
    free =
        free && (is_dense(kernel, kernel.stores[i]) || kernel.stores[i].mode != StoreMode::kWrite);
  return free || kernel.inner <= 2 * kLanes<T> ? kMapBlock / larger(kernel.inner, 1) : 1;
}

template <class T>
PlannedLoad<T> plan_load(const MapKernel<T>& kernel, const MapLoad<T>& load, int64_t lines,
                         bool overwritten) {
  const Source<T>& source = load.source;
  const bool scalar = is_scalar(kernel, load);
  if (is_dense(kernel, load) || (lines == 1 && !scalar && source.map == RowMap::kSelf))
    return {source.data - source.base * source.stride, source.stride, LoadPlan::kInPlace};
  if (lines == 1 && !scalar && source.map == RowMap::kOne)
    return {source.data, 0, LoadPlan::kInPlace};
  LoadPlan plan = LoadPlan::kEveryBlock;
  if (scalar && lines == 1) plan = LoadPlan::kEveryLine;
  if (is_uniform(kernel, load) && (scalar || lines > 1)) plan = LoadPlan::kOnce;
  return {nullptr, 0, overwritten ? LoadPlan::kEveryBlock : plan};
}

// True if rows [r0, r1) of the store and of a load read in place share no memory.
template <class T>
CAVS_INLINE bool are_disjoint(const MapKernel<T>& kernel, const MapStore<T>& store,
                              const MapLoad<T>& load, const PlannedLoad<T>& planned, int64_t r0,
                              int64_t r1) {
  if (planned.plan != LoadPlan::kInPlace) return false;
  const int64_t last = kernel.outer - 1;
  const T* store_begin = store.data + (r0 - store.base) * store.stride;
  const T* store_end =
      store.data + (r1 - 1 - store.base) * store.stride + last * store.outer_stride + kernel.inner;
  const T* load_begin = planned.origin + r0 * planned.row_stride;
  const T* load_end =
      planned.origin + (r1 - 1) * planned.row_stride + last * load.outer_stride + kernel.inner;
  return load_end <= store_begin || store_end <= load_begin;
}

template <class T>
void find_readers(const MapKernel<T>& kernel, const MapPlan<T>& plan) {
  for (int l = 0; l < kernel.num_loads; ++l) plan.reader[l] = kNoOp;
  for (int i = 0; i < kernel.num_ops; ++i) {
    const MapOp& op = kernel.ops[i];
    const int16_t reads[] = {op.a, op.b, op.c};
    for (int j = 0; j < kMapOperations[static_cast<int>(op.code)].operands; ++j)
      if (reads[j] < kernel.num_loads) plan.reader[reads[j]] = i;
  }
  for (int s = 0; s < kernel.num_stores; ++s)
    if (kernel.stores[s].reg < kernel.num_loads) plan.reader[kernel.stores[s].reg] = kernel.num_ops;
}

// Find operations that may write straight into a store; fill the constants.
template <class T>
void plan_ops(const MapKernel<T>& kernel, const MapPlan<T>& plan) {
  for (int64_t r = 0; r < map_registers(kernel); ++r) plan.writer[r] = kNoOp;
  for (int i = 0; i < kernel.num_ops; ++i) {
    plan.through[i] = kNoStore;
    int32_t& writer = plan.writer[kernel.ops[i].dst];
    if (writer != kNoOp) plan.through[writer] = kOverwritten;
    writer = i;
  }
  for (int s = 0; s < kernel.num_stores; ++s) {
    const MapStore<T>& store = kernel.stores[s];
    const int32_t writer = plan.writer[store.reg];
    if (writer != kNoOp && store.mode == StoreMode::kWrite && kernel.segments == nullptr &&
        (plan.lines == 1 || is_dense(kernel, store)))
      plan.through[writer] = s;
  }
  for (int i = 0; i < kernel.num_ops; ++i) {
    const MapOp& op = kernel.ops[i];
    if (op.code != MapOpcode::kConstant || plan.through[i] == kOverwritten) continue;
    bool only = op.dst >= kernel.num_loads;
    for (int j = 0; j < i; ++j) only = only && kernel.ops[j].dst != op.dst;
    if (!only) continue;
    fill(plan.block(op.dst), static_cast<T>(op.imm), int64_t{kMapBlock});
    plan.reg[op.dst] = plan.block(op.dst);
    plan.through[i] = kDone;
  }
}

template <class T>
MapPlan<T> make_plan(const MapKernel<T>& kernel, int64_t r0, int64_t r1, T* scratch) {
  MapPlan<T> plan = carve(kernel, scratch);
  plan.lines = lines_of_block(kernel);
  plan_ops(kernel, plan);
  find_readers(kernel, plan);
  plan.disjoint = r1 - r0 >= 8;  // for a few rows the test costs more than it saves
  for (int i = 0; i < kernel.num_loads; ++i) {
    plan.load[i] = plan_load(kernel, kernel.loads[i], plan.lines, plan.writer[i] != kNoOp);
    for (int s = 0; plan.disjoint && s < kernel.num_stores; ++s)
      plan.disjoint = are_disjoint(kernel, kernel.stores[s], kernel.loads[i], plan.load[i], r0, r1);
  }
  return plan;
}

}  // namespace
}  // namespace cavs::CAVS_ISA
