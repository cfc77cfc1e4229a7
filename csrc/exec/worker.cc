#include "exec/worker.h"

#include <algorithm>
#include <utility>

#include "exec/spaces.h"

namespace cavs {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

template <class T>
size_t kernel_scratch(const BoundProgram<T>& bound, const Analysis& analysis,
                      const Kernels<T>& kernels) {
  size_t most = 64;
  for (const Product& product : analysis.products) {
    for (size_t i = 0; i < product.cells.size(); ++i) {  // and those that may be joined
      for (size_t j = i; j < product.cells.size() && product.cells[j].row == product.cells[i].row;
           ++j) {
        const int32_t columns = product.cells[j].column_end - product.cells[i].column;
        most = std::max(most, kernels.matmul_tn_scratch(product.most, columns));
      }
    }
  }
  for (const Bound<T>& b : bound.instructions) {
    size_t needed = static_cast<size_t>(std::max(b.k, b.n));
    if (b.kind == InstructionKind::kMatmul) needed = kernels.matmul_scratch(b.k);
    if (b.kind == InstructionKind::kMap) {
      MapKernel<T> map = b.map;
      map.loads = bound.loads.data() + b.first;
      map.stores = bound.stores.data() + b.first_store;
      needed = kernels.map_scratch(map);
    }
    most = std::max(most, needed);
  }
  return most;
}

template <class T>
void Worker<T>::refresh() {
  own_ = *c_.bound;  // same sizes every time: no allocation but the first
  for (Bound<T>& b : own_.instructions) {
    b.map.loads = own_.loads.data() + b.first;
    b.map.stores = own_.stores.data() + b.first_store;
  }
  cut_.reserve(own_.sources.size() + 2 * own_.instructions.size());  // what points into it stays
  scratch_.reserve(c_.scratch_bytes);
  kernel_scratch_.reserve(c_.kernel_elements * sizeof(T));
  if (c_.profiling) profile.resize(c_.program->instructions.size());
}

template <class T>
void Worker<T>::patch(const Bound<T>& b, T* scratch, int64_t first_row) {
  for (int32_t i = b.first_patch; i < b.end_patch; ++i) {
    const Patch& p = (*c_.patches)[i];
    T* data = scratch + c_.scratch_offsets[p.buffer] / sizeof(T) + p.column;
    const int64_t base = p.edges ? c_.schedule->edge_offsets[first_row] : first_row;
    switch (p.place) {
      case Patch::Place::kSource:
        own_.sources[p.at].data = data;
        own_.sources[p.at].base = base;
        break;
      case Patch::Place::kLoad:
        own_.loads[p.at].source.data = data;
        own_.loads[p.at].source.base = base;
        break;
      case Patch::Place::kStore:
        own_.stores[p.at].data = data;
        own_.stores[p.at].base = base;
        break;
      case Patch::Place::kOut:
        own_.instructions[p.at].out = data;
        own_.instructions[p.at].base = base;
        break;
    }
  }
}

// The rows of [r0, r1) from the first to the last that has anything to multiply. Of vertices that
// sum over the parents whose k-th child they are those of a task stand together, see schedule.h.
template <class T>
static std::pair<int64_t, int64_t> filled(const Source<T>* sources, int32_t count, int64_t r0,
                                          int64_t r1) {
  for (int32_t i = 0; i < count; ++i) {
    const Source<T>& s = sources[i];
    if (s.map != RowMap::kSegmentSum || s.offsets != sources->offsets) return {r0, r1};
  }
  if (count == 0) return {r0, r1};
  const int32_t* const offsets = sources->offsets;
  while (r0 < r1 && offsets[r0] == offsets[r0 + 1]) ++r0;
  while (r0 < r1 && offsets[r1 - 1] == offsets[r1]) --r1;
  return {r0, r1};
}

// Panels [p0, p1) of a product.
template <class T>
void Worker<T>::multiply(const Bound<T>& b, int64_t r0, int64_t r1, int64_t p0, int64_t p1) {
  const Source<T>* sources = own_.sources.data() + b.first;
  const auto [begin, end] = filled(sources, b.count, r0, r1);
  const int64_t first = p0 * c_.kernels->panel, last = std::min(p1 * c_.kernels->panel, b.n);
  const auto clear = [&](int64_t from, int64_t to) {
    for (int64_t r = from; r < to; ++r) {
      T* const row = b.out + (r - b.base) * b.stride;
      std::fill(row + first, row + last, T(0));
    }
  };
  if (!b.accumulate) clear(r0, begin), clear(end, r1);
  c_.kernels->matmul(sources, b.count, begin, end, b.packed, b.packed_k, b.k, b.n, p0, p1, b.out,
                     b.stride, b.base, b.accumulate, kernel_scratch_.template as<T>());
}

template <class T>
void Worker<T>::run_rows(int32_t id, int64_t r0, int64_t r1) {
  const Bound<T>& b = own_.instructions[id];
  const Source<T>* sources = own_.sources.data() + b.first;
  T* scratch = kernel_scratch_.template as<T>();
  const Kernels<T>& k = *c_.kernels;
  switch (b.kind) {
    case InstructionKind::kMatmul:
      multiply(b, r0, r1, 0, panels(b.n));
      return;
    case InstructionKind::kMap:
      k.map(b.map, r0, r1, scratch);
      return;
    case InstructionKind::kSegmentMax:
      k.segment_max(*sources, r0, r1, b.out, b.stride, b.base);
      return;
    case InstructionKind::kCrossEntropy:
      k.cross_entropy(*sources, nullptr, b.index, r0, r1, b.out, b.stride, b.base, nullptr, 0, 0);
      return;
    case InstructionKind::kCrossEntropyGrad:
      k.cross_entropy(*sources, b.count > 1 ? sources + 1 : nullptr, b.index, r0, r1, nullptr, 0, 0,
                      b.out, b.stride, b.base);
      return;
    case InstructionKind::kCopy:
      k.copy_rows(*sources, r0, r1, b.out, b.stride, b.base);
      return;
    case InstructionKind::kMatmulTN:
    case InstructionKind::kSumRows:
    case InstructionKind::kLookupGrad:
    case InstructionKind::kLstm:
    case InstructionKind::kLstmGrad:
    case InstructionKind::kLstmWeightGrad:
      return;  // never in a body of rows
  }
}

template <class T>
void Worker<T>::execute(int32_t id, int64_t r0, int64_t r1) {
  if (r0 == r1) return;
  if (!c_.profiling) {
    run_rows(id, r0, r1);
    return;
  }
  const double start = now();
  run_rows(id, r0, r1);
  profile[id].seconds += now() - start;
  ++profile[id].calls;
}

template <class T>
void Worker<T>::run(const Item& item) {
  const double start = c_.profiling ? now() : 0;
  switch (item.kind) {
    case ItemKind::kBody: {
      const Body& body = c_.analysis->bodies[item.id];
      int64_t e0 = 0, e1 = 0;
      if (body.edges) {
        e0 = c_.schedule->edge_offsets[item.r0];
        e1 = c_.schedule->edge_offsets[item.r1];
      }
      for (int32_t id : body.instructions) {
        const Bound<T>& b = own_.instructions[id];
        patch(b, scratch_.template as<T>(), item.r0);
        execute(id, b.edges ? e0 : item.r0, b.edges ? e1 : item.r1);
      }
      return;
    }
    case ItemKind::kInstruction:
      patch(own_.instructions[item.id], shared_scratch(item.id), item.a);
      execute(item.id, item.r0, item.r1);
      return;
    case ItemKind::kPanels:
      run_panels(item);
      break;
    case ItemKind::kTransposed:
      run_transposed(item);
      break;
    case ItemKind::kStage:
      stage(item);
      break;
    case ItemKind::kColumns:
      run_columns(item);
      break;
    case ItemKind::kSlots:
      run_slots(item);
      break;
    case ItemKind::kPack:
      pack(item);
      return;
    case ItemKind::kZero: {
      const int64_t n = c_.sizes[item.id];
      T* grad = c_.grads[item.id];
      std::fill(grad + n * item.a / item.b, grad + n * (item.a + 1) / item.b, T(0));
      return;
    }
  }
  if (c_.profiling) note(item, now() - start);
}

// The seconds of an item by instruction; of a product by the rows of its terms.
template <class T>
void Worker<T>::note(const Item& item, double seconds) {
  if (item.kind != ItemKind::kTransposed || pairs_.empty()) {
    profile[item.id].seconds += seconds;
    ++profile[item.id].calls;
    return;
  }
  int64_t rows = 0;
  for (const RowPairs<T>& p : pairs_) rows += p.end - p.begin;
  for (size_t i = 0; i < pairs_.size(); ++i) {
    Profile& of_term = profile[summed_[i]];
    of_term.seconds += seconds * static_cast<double>(pairs_[i].end - pairs_[i].begin) / rows;
    ++of_term.calls;
  }
}

template <class T>
void Worker<T>::run_panels(const Item& item) {
  const Bound<T>& b = own_.instructions[item.id];
  patch(b, shared_scratch(item.id), item.c);
  multiply(b, item.r0, item.r1, item.a, item.b);
}

// Adds columns [begin, end) of sources side by side.
template <class T>
static void cut(const Source<T>* sources, int32_t count, int64_t begin, int64_t end,
                std::vector<Source<T>>& out) {
  int64_t at = 0;
  for (int32_t i = 0; i < count; ++i) {
    const int64_t from = std::max(begin - at, int64_t{0});
    const int64_t to = std::min(end - at, int64_t{sources[i].width});
    if (from < to) {
      out.push_back(sources[i]);
      out.back().data += from;
      out.back().width = static_cast<int32_t>(to - from);
    }
    at += sources[i].width;
  }
}

// Adds so many columns of zeros, if any.
template <class T>
void Worker<T>::pad(int32_t columns) {
  if (columns <= 0) return;
  Source<T>& zeros = cut_.emplace_back();
  zeros.data = c_.zeros;
  zeros.map = RowMap::kOne;
  zeros.width = columns;
}

template <class T>
RowRange Worker<T>::rows_of(const Item& sum, int32_t term) const {
  if (sum.c < 0) return {0, -sum.c};
  const Space space = own_.instructions[term].space;
  if (sum.c == 0) return c_.spaces->rows(space);
  const RowRange rows = c_.schedule->tasks[sum.c - 1].rows;
  if (is_vertex(space)) return rows;
  const PooledVector<int32_t>& offsets = c_.schedule->edge_offsets;
  return {offsets[rows.begin], offsets[rows.end]};
}

// Columns of the left operand of a product, and of both.
template <class T>
static std::pair<int64_t, int64_t> widths_of(const Bound<T>& b, const Source<T>* sources) {
  int64_t k = 0, all = 0;
  for (int32_t i = 0; i < b.count; ++i) {
    if (i == b.split) k = all;
    all += sources[i].width;
  }
  return {k, all};
}

template <class T>
void Worker<T>::stage(const Item& item) {
  const Bound<T>& b = own_.instructions[item.id];
  const Source<T>* sources = own_.sources.data() + b.first;
  const int64_t width = widths_of(b, sources).second;
  T* out = c_.staged.template as<T>() + c_.plan->staged_at[item.id] + item.a * width;
  for (int32_t i = 0; i < b.count; ++i) {
    c_.kernels->copy_rows(sources[i], item.r0, item.r1, out, width, item.r0);
    out += sources[i].width;
  }
}

template <class T>
void Worker<T>::run_transposed(const Item& item) {
  const Product& product = c_.analysis->products[item.id];
  const Product::Cell& cell = c_.plan->cells[item.cell];
  T* out = nullptr;
  cut_.clear();
  pairs_.clear();
  summed_.clear();
  for (size_t t = 0; t < product.terms.size(); ++t) {
    const int32_t id = product.terms[t];
    const Bound<T>& b = own_.instructions[id];
    const Source<T>* sources = own_.sources.data() + b.first;
    const RowRange rows = rows_of(item, id);
    if (const int32_t f = c_.factors_of_instruction[id]; f >= 0) {
      const bool first = item.r0 == 0 && item.a == 0;  // of the pieces of this product
      if (first) copy_factors(c_.factors[f], id, b, sources, rows, *c_.kernels);
      continue;
    }
    int32_t split = b.split, count = b.count;
    Source<T> waiting[2];
    if (item.c < 0) {
      const auto [k, width] = widths_of(b, sources);
      T* const data = c_.staged.template as<T>() + c_.plan->staged_at[id];
      for (Source<T>& s : waiting) s.stride = width;
      waiting[0].data = data, waiting[0].width = static_cast<int32_t>(k);
      waiting[1].data = data + k, waiting[1].width = static_cast<int32_t>(width - k);
      sources = waiting, split = 1, count = 2;
    }
    const Product::Cell& reach = product.reach[t];
    if (reach.columns_of(cell) == 0) continue;
    out = b.out + (item.r0 - reach.row) * b.stride - reach.column + cell.column;
    if (rows.size() == 0) continue;
    const Source<T>* left = cut_.data() + cut_.size();
    cut(sources, split, item.r0 - reach.row, item.r1 - reach.row, cut_);
    const Source<T>* right = cut_.data() + cut_.size();
    pad(reach.column - cell.column);
    cut(sources + split, count - split, cell.column - reach.column, cell.column_end - reach.column,
        cut_);
    pad(cell.column_end - reach.column_end);
    const Source<T>* end = cut_.data() + cut_.size();
    pairs_.push_back({left, static_cast<int32_t>(right - left), right,
                      static_cast<int32_t>(end - right), rows.begin, rows.end});
    summed_.push_back(id);
  }
  if (out == nullptr) return;  // factors
  const Bound<T>& b = own_.instructions[item.id];
  const int64_t n0 = item.a - cell.column, n1 = item.b - cell.column;
  if (pairs_.empty()) {
    for (int64_t i = 0; i < item.r1 - item.r0 && !b.accumulate; ++i) {
      std::fill(out + i * b.stride + n0, out + i * b.stride + n1, T(0));
    }
    return;
  }
  c_.kernels->matmul_tn(pairs_.data(), static_cast<int32_t>(pairs_.size()), item.r1 - item.r0,
                        product.most, cell.columns(), n0, n1, out, b.stride, b.accumulate,
                        kernel_scratch_.template as<T>());
}

// Blocks of a fixed number of rows are summed apart and then together: the order is the same for
// any number of threads, and many rows lose less precision.
template <class T>
void Worker<T>::run_columns(const Item& item) {
  constexpr int64_t kBlock = 256;
  const Bound<T>& b = own_.instructions[item.id];
  const RowRange rows = rows_of(item, item.id);
  Source<T> source = own_.sources[b.first];
  source.data += item.a;
  source.width = item.b - item.a;
  T* out = b.out + item.a;
  T* partial = kernel_scratch_.template as<T>();
  if (!b.accumulate) std::fill(out, out + source.width, T(0));
  for (int64_t r = rows.begin; r < rows.end; r += kBlock) {
    c_.kernels->sum_rows(source, r, std::min<int64_t>(r + kBlock, rows.end), partial, false);
    for (int32_t j = 0; j < source.width; ++j) out[j] += partial[j];
  }
}

template <class T>
void Worker<T>::run_slots(const Item& item) {
  for (const Table& table : c_.tables) {
    for (const Lookup& lookup : table.lookups) {
      if (lookup.instruction != item.id) continue;
      const Source<T>& values = own_.sources[own_.instructions[item.id].first];
      T* grad = c_.grads[table.param];
      if (item.c == 0) {
        run_lookup(table, lookup, values, item.a, item.b, grad, *c_.kernels);
      } else {
        run_lookup_of_task(table, lookup, values, rows_of(item, item.id), item.a, item.b, grad,
                           *c_.kernels);
      }
    }
  }
}

template <class T>
void Worker<T>::pack(const Item& item) {
  const Weight& w = c_.program->weights[item.id];
  const int64_t panel = c_.kernels->panel, begin = item.a * panel, end = item.b * panel;
  parts_.clear();
  for (const WeightPiece& q : w.pieces) {
    if (q.n0 >= end || q.n0 + q.cols <= begin) continue;
    parts_.push_back(
        {c_.params[q.param] + q.offset, q.row_stride, q.col_stride, q.rows, q.cols, q.k0, q.n0});
  }
  c_.kernels->pack(parts_.data(), static_cast<int32_t>(parts_.size()), w.k, w.n, item.a, item.b,
                   c_.packed[item.id].template as<T>());
}

template class Worker<float>;
template class Worker<double>;
template size_t kernel_scratch(const BoundProgram<float>&, const Analysis&, const Kernels<float>&);
template size_t kernel_scratch(const BoundProgram<double>&, const Analysis&,
                               const Kernels<double>&);

}  // namespace cavs
