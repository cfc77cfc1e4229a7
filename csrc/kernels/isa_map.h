// The block interpreter of fused elementwise kernels. A register is a pointer to one block of up to
// kMapBlock values: into the loaded rows if they can be read in place, else into scratch.
// isa_uniform.h draws the numbers of kUniform.
#pragma once

#include "kernels/isa_map_ops.h"
#include "kernels/isa_map_plan.h"

namespace cavs::CAVS_ISA {
namespace {

// One block of the iteration: `lines` lines from (row, o) on, columns [column, column + cols) of
// each. Rows from `end` on do not exist. item: index into the segment of the row, if there are
// segments.
struct MapWindow {
  int64_t row, o, lines, column, cols, end;
  int64_t item = 0;
};

// Call f(line, row, o) for each line.
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

// Copy whole vectors: what follows the last value is overwritten by the next line, or is the
// padding at the end of a register.
template <class T>
CAVS_INLINE void copy_line(T* out, const T* in, int64_t n) {
  for_each_vector<T>(
      n, [&](int64_t i) { store(out + i, load(in + i)); },
      [&](int64_t i, int c) { store(out + i, load_partial(in + i, c)); });
}

template <class T>
const T* load_block(const MapKernel<T>& kernel, const MapLoad<T>& load, const MapWindow& w,
                    bool one_line, T* block) {
  const Source<T>& source = load.source;
  if (is_scalar(kernel, load)) {
    for_each_line(w, kernel.outer, [&](int64_t line, int64_t row, int64_t o) {
      T buffer;
      const int64_t at = load.by_item ? w.item : row;
      const T* value = read_row(source, at, o * load.outer_stride, 1, &buffer);
      fill(block + line * w.cols, value == nullptr ? T(0) : *value, w.cols);
    });
    return block;
  }
  if (one_line) {
    const int64_t at = load.by_item ? w.item : w.row;
    const T* row = read_row(source, at, w.o * load.outer_stride + w.column, w.cols, block);
    if (row == nullptr) fill(block, T(0), w.cols);
    return row == nullptr ? block : row;
  }
  for_each_line(w, kernel.outer, [&](int64_t line, int64_t row, int64_t o) {
    T* out = block + line * w.cols;
    if (source.map == RowMap::kSelf || source.map == RowMap::kIndex) {
      const T* in = plain_row(source, row);
      if (in != nullptr) return copy_line(out, in + o * load.outer_stride, w.cols);
    }
    copy_row(source, row, o * load.outer_stride, w.cols, out);
  });
  return block;
}

template <class T>
CAVS_INLINE void load_blocks(const MapKernel<T>& kernel, const MapPlan<T>& plan, const MapWindow& w,
                             bool first) {
  for (int i = 0; i < kernel.num_loads; ++i) {
    const PlannedLoad<T>& planned = plan.load[i];
    const MapLoad<T>& load = kernel.loads[i];
    if (planned.plan == LoadPlan::kInPlace) {
      plan.reg[i] =
          planned.origin + w.row * planned.row_stride + w.o * load.outer_stride + w.column;
      continue;
    }
    if (planned.plan == LoadPlan::kOnce && !first) continue;
    if (planned.plan == LoadPlan::kEveryLine && w.column > 0) continue;
    plan.reg[i] = load_block(kernel, load, w, plan.lines == 1, plan.block(i));
    if (w.column > 0 || kernel.outer > 1 || is_scalar(kernel, load)) continue;
    if (kernel.segments != nullptr) continue;
    const int64_t next = w.row + w.lines, end = smaller(next + w.lines, w.end);
    for (int64_t row = next; row < end; ++row) fetch_row(load.source, row, 0, w.cols);
  }
}

// Store what no operation has written through.
template <class T>
void store_block(const MapKernel<T>& kernel, const MapStore<T>& store, const MapWindow& w,
                 const T* value, T* target) {
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

// Output of operation `i`: the store itself, unless a later operation may read what it overwrites.
template <class T>
CAVS_INLINE T* op_output(const MapKernel<T>& kernel, const MapPlan<T>& plan, int i, int64_t n) {
  T* block = plan.block(kernel.ops[i].dst);
  if (plan.through[i] < 0) return block;
  T* target = plan.target[plan.through[i]];
  if (plan.disjoint) return target;
  for (int l = 0; l < kernel.num_loads; ++l) {
    if (plan.reg[l] >= target + n || target >= plan.reg[l] + n) continue;
    if (plan.reg[l] != target || plan.reader[l] > i)
      return block;  // otherwise each element overwrites only itself
  }
  return target;
}

template <class T>
void number_columns(const MapWindow& w, T* out) {
  for (int64_t line = 0; line < w.lines; ++line) {
    for (int64_t i = 0; i < w.cols; ++i) out[line * w.cols + i] = static_cast<T>(w.column + i);
  }
}

template <class T>
void draw_uniform(const MapKernel<T>& kernel, const MapOp& op, const MapWindow& w, T* out) {
  const uint32_t stream = static_cast<uint32_t>(static_cast<int64_t>(op.imm));
  for_each_line(w, kernel.outer, [&](int64_t line, int64_t row, int64_t o) {
    const int64_t id = kernel.row_ids != nullptr ? kernel.row_ids[row] : row;
    const uint32_t key = row_key(kernel.seed, kernel.step, stream, static_cast<uint32_t>(id));
    uniform(key, static_cast<uint32_t>(o * kernel.inner + w.column), out + line * w.cols, w.cols);
  });
}

template <class T>
void run_block(const MapKernel<T>& kernel, const MapPlan<T>& plan, const MapWindow& w, bool first) {
  const int64_t n = w.lines * w.cols;
  load_blocks(kernel, plan, w, first);
  for (int s = 0; s < kernel.num_stores; ++s) {
    const MapStore<T>& store = kernel.stores[s];
    plan.target[s] = store.data + (w.row - store.base) * store.stride + w.o * store.outer_stride +
                     (store.mode == StoreMode::kWrite ? w.column : 0);
  }
  for (int i = 0; i < kernel.num_ops; ++i) {
    if (plan.through[i] == kDone) continue;
    const MapOp& op = kernel.ops[i];
    T* out = op_output(kernel, plan, i, n);
    if (op.code == MapOpcode::kUniform) {
      draw_uniform(kernel, op, w, out);
    } else if (op.code == MapOpcode::kColumn) {
      number_columns(w, out);
    } else {
      run_op(op, plan.reg, MapOutput<T>{out, out == plan.block(op.dst)}, n);
    }
    plan.reg[op.dst] = out;
  }
  for (int s = 0; s < kernel.num_stores; ++s) {
    const T* value = plan.reg[kernel.stores[s].reg];
    if (kernel.segments != nullptr && w.item > kernel.segments[w.row])
      add(plan.target[s], plan.target[s], value, n);
    else if (value != plan.target[s])
      store_block(kernel, kernel.stores[s], w, value, plan.target[s]);
  }
}

// Rows of a kernel that sums over the segment of each row.
template <class T>
void map_segments(const MapKernel<T>& kernel, const MapPlan<T>& plan, int64_t r0, int64_t r1) {
  bool first = true;
  MapWindow w{r0, 0, 1, 0, 0, r1};
  for (; w.row < r1; ++w.row) {
    const int64_t begin = kernel.segments[w.row], end = kernel.segments[w.row + 1];
    for (w.o = 0; w.o < kernel.outer; ++w.o) {
      for (int s = 0; s < kernel.num_stores && begin == end; ++s) {
        const MapStore<T>& store = kernel.stores[s];
        fill(store.data + (w.row - store.base) * store.stride + w.o * store.outer_stride, T(0),
             kernel.inner);
      }
      for (w.item = begin; w.item < end; ++w.item) {
        for (w.column = 0; w.column == 0 || w.column < kernel.inner; w.column += kMapBlock) {
          w.cols = smaller(kernel.inner - w.column, kMapBlock);
          run_block(kernel, plan, w, first);
        }
        first = false;
      }
    }
  }
}

template <class T>
void map(const MapKernel<T>& kernel, int64_t r0, int64_t r1, T* scratch) {
  if (r0 >= r1 || kernel.outer <= 0) return;
  const MapPlan<T> plan = make_plan(kernel, r0, r1, scratch);
  if (kernel.segments != nullptr) return map_segments(kernel, plan, r0, r1);
  const int64_t outer = kernel.outer, inner = kernel.inner;
  bool first = true;
  MapWindow w{r0, 0, 0, 0, 0, r1};
  for (int64_t left = (r1 - r0) * outer; left > 0; left -= w.lines) {
    w.lines = smaller(plan.lines, left);
    for (w.column = 0; w.column == 0 || w.column < inner; w.column += kMapBlock) {
      w.cols = smaller(inner - w.column, kMapBlock);
      run_block(kernel, plan, w, first && w.column == 0);
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
