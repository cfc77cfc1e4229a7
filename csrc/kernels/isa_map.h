// The block interpreter of the fused elementwise kernels. A register is a pointer to one block of
// up to kMapBlock values: into the loaded rows where they can be read in place, else into scratch.
// A line is one (row, outer) pair; a block is a piece of one line, or several narrow lines.
// kUniform's numbers: isa_uniform.h.
#pragma once

#include "kernels/isa_map_ops.h"

namespace cavs::CAVS_ISA {
namespace {

// What one call keeps in its scratch.
template <class T>
struct MapState {
  const T** reg;     // register -> its block
  T** target;        // store -> where its first line goes
  int32_t* through;  // op -> the store it may write straight into, or one of:
  int32_t* writer;   // register -> the last op that writes it, or kNoOp
  T* blocks;         // register -> kMapBlock values of scratch
};
constexpr int32_t kNoStore = -1;
constexpr int32_t kOverwritten = -2;  // a later op writes the same register
constexpr int32_t kDone = -3;         // a constant filled once for the whole call
constexpr int32_t kNoOp = -1;

template <class T>
CAVS_INLINE int64_t map_registers(const MapKernel<T>& kernel) {
  return larger(kernel.num_registers, kernel.num_loads);
}

template <class T>
size_t map_scratch(const MapKernel<T>& kernel) {
  const int64_t bytes = 12 * map_registers(kernel) + 8 * kernel.num_stores + 4 * kernel.num_ops + 128;
  return static_cast<size_t>(map_registers(kernel) * kMapBlock) +
         ceil_div(bytes, static_cast<int64_t>(sizeof(T)));
}

template <class T>
MapState<T> carve(const MapKernel<T>& kernel, T* scratch) {
  MapState<T> state;
  state.blocks = reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(scratch) + 63) & ~uintptr_t{63});
  T* end = state.blocks + map_registers(kernel) * kMapBlock;
  state.reg = reinterpret_cast<const T**>(end);
  state.target = reinterpret_cast<T**>(end + map_registers(kernel) * 8 / sizeof(T));
  state.through = reinterpret_cast<int32_t*>(state.target + kernel.num_stores);
  state.writer = state.through + kernel.num_ops;
  return state;
}

// The block a line's values sit in, one after the other, without a copy.
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
// Every line loads the same.
template <class T>
CAVS_INLINE bool is_uniform(const MapKernel<T>& kernel, const MapLoad<T>& load) {
  return load.source.map == RowMap::kOne && (kernel.outer == 1 || load.outer_stride == 0);
}

// How many lines make a block: many if that costs no copy or the lines are very narrow.
template <class T>
int64_t lines_of_block(const MapKernel<T>& kernel) {
  if (kernel.inner > kMapBlock / 2) return 1;
  bool free = true;
  for (int i = 0; i < kernel.num_loads; ++i)
    free = free && (is_dense(kernel, kernel.loads[i]) || is_uniform(kernel, kernel.loads[i]));
  for (int i = 0; i < kernel.num_stores; ++i)
    free = free && (is_dense(kernel, kernel.stores[i]) ||
                    kernel.stores[i].mode != StoreMode::kWrite);
  return free || kernel.inner <= 2 * kLanes<T> ? kMapBlock / larger(kernel.inner, 1) : 1;
}

// Decides once a call which ops may write straight to memory, and fills the constants.
template <class T>
void plan_ops(const MapKernel<T>& kernel, const MapState<T>& state) {
  for (int64_t r = 0; r < map_registers(kernel); ++r) state.writer[r] = kNoOp;
  for (int i = 0; i < kernel.num_ops; ++i) {
    state.through[i] = kNoStore;
    int32_t& writer = state.writer[kernel.ops[i].dst];
    if (writer != kNoOp) state.through[writer] = kOverwritten;
    writer = i;
  }
  for (int s = 0; s < kernel.num_stores; ++s) {
    const int32_t writer = state.writer[kernel.stores[s].reg];
    if (kernel.stores[s].mode == StoreMode::kWrite && writer != kNoOp) state.through[writer] = s;
  }
  for (int i = 0; i < kernel.num_ops; ++i) {
    const MapOp& op = kernel.ops[i];
    if (op.code != MapOpcode::kConstant || state.through[i] == kOverwritten) continue;
    bool only = op.dst >= kernel.num_loads;
    for (int j = 0; j < i; ++j) only = only && kernel.ops[j].dst != op.dst;
    if (!only) continue;
    T* block = state.blocks + op.dst * kMapBlock;
    fill(block, static_cast<T>(op.imm), int64_t{kMapBlock});
    state.reg[op.dst] = block;
    state.through[i] = kDone;
  }
}

// A block of the iteration: `lines` lines from (row, outer index) on, columns [column,
// column + cols) of each.
struct MapWindow {
  int64_t row, o, lines, column, cols;
};

// Calls f(line, row, outer index) for each line.
template <class F>
CAVS_INLINE void for_each_line(const MapWindow& w, int64_t outer, F f) {
  int64_t row = w.row, o = w.o;
  for (int64_t line = 0; line < w.lines; ++line) {
    f(line, row, o);
    if (++o == outer) {
      o = 0;
      ++row;
    }
  }
}

template <class T>
CAVS_INLINE const T* load_block(const MapKernel<T>& kernel, const MapLoad<T>& load,
                                const MapWindow& w, T* block) {
  const Source<T>& source = load.source;
  const bool scalar = is_scalar(kernel, load);
  if (w.lines > 1 && is_dense(kernel, load))
    return plain_row(source, w.row) + w.o * load.outer_stride + w.column;
  if (w.lines == 1 && !scalar) {
    const T* row = read_row(source, w.row, w.o * load.outer_stride + w.column, w.cols, block);
    if (row != nullptr) return row;
    fill(block, T(0), w.cols);
    return block;
  }
  for_each_line(w, kernel.outer, [&](int64_t line, int64_t row, int64_t o) {
    T* out = block + line * w.cols;
    if (scalar) {
      T buffer;
      const T* value = read_row(source, row, o * load.outer_stride, 1, &buffer);
      fill(out, value == nullptr ? T(0) : *value, w.cols);
    } else {
      copy_row(source, row, o * load.outer_stride + w.column, w.cols, out);
    }
  });
  return block;
}

template <class T>
CAVS_INLINE void store_block(const MapKernel<T>& kernel, const MapStore<T>& store,
                             const MapWindow& w, const T* value, T* target) {
  if (value == target) return;  // the op has written it there
  if (store.mode == StoreMode::kWrite && (w.lines == 1 || is_dense(kernel, store)))
    return copy(target, value, w.lines * w.cols);
  for_each_line(w, kernel.outer, [&](int64_t line, int64_t row, int64_t o) {
    T* out = store.data + (row - store.base) * store.stride + o * store.outer_stride;
    const T* in = value + line * w.cols;
    if (store.mode == StoreMode::kWrite) return copy(out + w.column, in, w.cols);
    const bool first = w.column == 0;
    if (store.mode == StoreMode::kSum) {
      const T part = sum_of(in, w.cols);
      *out = first ? part : *out + part;
    } else {
      const T part = max_of(in, w.cols);
      *out = first ? part : greater(part, *out);
    }
  });
}

template <class T>
void run_block(const MapKernel<T>& kernel, const MapState<T>& state, const MapWindow& w,
               bool first) {
  const int64_t n = w.lines * w.cols;
  for (int i = 0; i < kernel.num_loads; ++i) {
    const MapLoad<T>& load = kernel.loads[i];
    // A broadcast fills its whole block, once a line; where all lines are alike, once a call.
    const bool kept = state.writer[i] == kNoOp && (is_scalar(kernel, load) || w.lines > 1);
    if (kept && (w.column > 0 || (!first && is_uniform(kernel, load)))) continue;
    state.reg[i] = load_block(kernel, load, w, state.blocks + i * kMapBlock);
  }
  for (int s = 0; s < kernel.num_stores; ++s) {
    const MapStore<T>& store = kernel.stores[s];
    state.target[s] = store.data + (w.row - store.base) * store.stride +
                      w.o * store.outer_stride +
                      (store.mode == StoreMode::kWrite ? w.column : 0);
  }
  for (int i = 0; i < kernel.num_ops; ++i) {
    const MapOp& op = kernel.ops[i];
    const int32_t through = state.through[i];
    if (through == kDone) continue;
    T* out = state.blocks + op.dst * kMapBlock;
    if (through >= 0 && (w.lines == 1 || is_dense(kernel, kernel.stores[through]))) {
      // A later op may still read what this store overwrites.
      T* target = state.target[through];
      bool clear = true;
      for (int l = 0; l < kernel.num_loads; ++l)
        clear = clear && (state.reg[l] + n <= target || target + n <= state.reg[l]);
      if (clear) out = target;
    }
    if (op.code == MapOpcode::kUniform) {
      for_each_line(w, kernel.outer, [&](int64_t line, int64_t row, int64_t o) {
        const uint32_t id = static_cast<uint32_t>(
            kernel.row_ids != nullptr ? kernel.row_ids[row] : static_cast<int32_t>(row));
        const uint32_t key = row_key(kernel.seed, kernel.step,
                                     static_cast<uint32_t>(static_cast<int64_t>(op.imm)), id);
        uniform(key, static_cast<uint32_t>(o * kernel.inner + w.column), out + line * w.cols,
                w.cols);
      });
    } else {
      run_op(op, state.reg, out, n);
    }
    state.reg[op.dst] = out;
  }
  for (int s = 0; s < kernel.num_stores; ++s)
    store_block(kernel, kernel.stores[s], w, state.reg[kernel.stores[s].reg], state.target[s]);
}

template <class T>
void map(const MapKernel<T>& kernel, int64_t r0, int64_t r1, T* scratch) {
  if (r0 >= r1 || kernel.outer <= 0) return;
  const MapState<T> state = carve(kernel, scratch);
  plan_ops(kernel, state);
  const int64_t lines = lines_of_block(kernel), outer = kernel.outer, inner = kernel.inner;
  bool first = true;
  MapWindow w{r0, 0, 0, 0, 0};
  for (int64_t left = (r1 - r0) * outer; left > 0; left -= w.lines) {
    w.lines = smaller(lines, left);
    for (w.column = 0; w.column == 0 || w.column < inner; w.column += kMapBlock) {
      w.cols = smaller(inner - w.column, kMapBlock);
      run_block(kernel, state, w, first);
    }
    first = false;
    if (outer == 1) {
      w.row += w.lines;
    } else {
      const int64_t o = w.o + w.lines;
      w.row += o / outer;
      w.o = o % outer;
    }
  }
}

}  // namespace
}  // namespace cavs::CAVS_ISA
