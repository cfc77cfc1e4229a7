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
    for (size_t i = 0; i < product.cells.size(); ++i) {  // and any neighbours that are joined
      for (size_t j = i; j < product.cells.size() && product.cells[j].row == product.cells[i].row;
           ++j) {
        const int32_t columns = product.cells[j].column_end - product.cells[i].column;
        most = std::max(most, kernels.matmul_tn_scratch(product.most, columns));
      }
    }
  }
  for (const Bound<T>& b : bound.instructions) {
    const auto scratch = b.execution->scratch;
    most = std::max(most, scratch == nullptr ? static_cast<size_t>(std::max(b.k, b.n))
                                             : scratch(bound, b, kernels));
  }
  return most;
}

template <class T>
void Worker<T>::refresh() {
  BoundProgram<T>& bound = state_.bound;
  bound = *context().bound;  // same sizes every time: only the first copy allocates
  for (Bound<T>& b : bound.instructions) {
    b.map.loads = bound.loads.data() + b.first_load;
    b.map.stores = bound.stores.data() + b.first_store;
  }
  // Pointers into `cut` stay valid while a product is put together.
  state_.cut.reserve(bound.sources.size() + 2 * bound.instructions.size());
  state_.scratch.reserve(context().scratch_bytes);
  state_.kernel_scratch.reserve(context().kernel_elements * sizeof(T));
  if (context().profiling) profile.resize(context().program->instructions.size());
}

template <class T>
void Worker<T>::patch(const Bound<T>& b, T* scratch, int64_t first_row) {
  BoundProgram<T>& bound = state_.bound;
  for (int32_t i = b.first_patch; i < b.end_patch; ++i) {
    const Patch& p = (*context().patches)[i];
    T* const data = scratch + context().scratch_offsets[p.buffer] / sizeof(T) + p.column;
    const bool own = p.relation == kNoRelation;
    const int64_t base = own ? first_row : context().spaces->offsets[p.relation][first_row];
    switch (p.target) {
      case Patch::Target::kSource:
        bound.sources[p.at].data = data;
        bound.sources[p.at].base = base;
        break;
      case Patch::Target::kLoad:
        bound.loads[p.at].source.data = data;
        bound.loads[p.at].source.base = base;
        break;
      case Patch::Target::kStore:
        bound.stores[p.at].data = data;
        bound.stores[p.at].base = base;
        break;
      case Patch::Target::kOut:
        bound.instructions[p.at].out = data;
        bound.instructions[p.at].base = base;
        break;
    }
  }
}

template <class T>
void Worker<T>::run(const Item& item) {
  const auto sum = [&](const auto& i) {
    timed(i.instruction,
          [&] { state_.bound.instructions[i.instruction].execution->sum(state_, item); });
  };
  std::visit(Overloaded{[&](const RunBody& i) { run_body(i); },
                        [&](const RunInstruction& i) {
                          patch(state_.bound.instructions[i.instruction],
                                shared_scratch(i.instruction), i.chunk);
                          run_rows(i.instruction, i.rows);
                        },
                        [&](const RunPanels& i) {
                          timed(i.instruction, [&] {
                            const Bound<T>& b = state_.bound.instructions[i.instruction];
                            patch(b, shared_scratch(i.instruction), i.chunk);
                            b.execution->panels(state_, b, i.rows, i.panels);
                          });
                        },
                        [&](const CopyOutputs& i) {
                          const Body& body = context().analysis->bodies[i.body];
                          copy_outputs(body, i.rows, shared_scratch(body.instructions[0]));
                        },
                        [&](const SumCell& i) {
                          if (!context().profiling) return sum(i);
                          const double start = now();
                          state_.bound.instructions[i.instruction].execution->sum(state_, item);
                          add_product_time(i.instruction, now() - start);
                        },
                        [&](const SumColumns& i) { sum(i); }, [&](const SumShare& i) { sum(i); },
                        [&](const DeferRows& i) { sum(i); }, [&](const PackWeight& i) { pack(i); },
                        [&](const ZeroGradient& i) { zero(i); }},
             item);
}

template <class T>
void Worker<T>::run_body(const RunBody& item) {
  const Body& body = context().analysis->bodies[item.body];
  for (int32_t id : body.instructions) {
    const Bound<T>& b = state_.bound.instructions[id];
    patch(b, state_.scratch.template as<T>(), item.rows.begin);
    const bool own = b.relation == kNoRelation;
    run_rows(id, own ? item.rows : context().spaces->related(item.rows, b.relation));
  }
  if (!body.outputs.empty()) copy_outputs(body, item.rows, state_.scratch.template as<T>());
}

template <class T>
void Worker<T>::copy_outputs(const Body& body, RowRange rows, const T* scratch) {
  for (const CopiedOutput<T>& out : context().copied_outputs) {
    const auto& own = body.outputs;
    if (std::find(own.begin(), own.end(), out.buffer) == own.end()) continue;
    const T* from = scratch + context().scratch_offsets[out.buffer] / sizeof(T);
    for (int32_t r = rows.begin; r < rows.end; ++r, from += out.width) {
      std::copy_n(from, out.width, out.data + int64_t{out.order ? out.order[r] : r} * out.width);
    }
  }
}

template <class T>
void Worker<T>::run_rows(int32_t id, RowRange rows) {
  if (rows.size() == 0) return;
  timed(id, [&] {
    const Bound<T>& b = state_.bound.instructions[id];
    b.execution->rows(state_, b, rows);
  });
}

// Run f and, while profiling, add its time to an instruction.
template <class T>
template <class F>
void Worker<T>::timed(int32_t id, F&& f) {
  if (!context().profiling) return f();
  const double start = now();
  f();
  profile[id].seconds += now() - start;
  ++profile[id].calls;
}

// Divide the time of a product among its terms by their rows.
template <class T>
void Worker<T>::add_product_time(int32_t id, double seconds) {
  if (state_.pairs.empty()) {
    profile[id].seconds += seconds;
    ++profile[id].calls;
    return;
  }
  int64_t rows = 0;
  for (const RowPairs<T>& p : state_.pairs) rows += p.end - p.begin;
  for (size_t i = 0; i < state_.pairs.size(); ++i) {
    Profile& of_term = profile[state_.terms[i]];
    const int64_t own = state_.pairs[i].end - state_.pairs[i].begin;
    of_term.seconds += seconds * static_cast<double>(own) / static_cast<double>(rows);
    ++of_term.calls;
  }
}

template <class T>
void Worker<T>::pack(const PackWeight& item) {
  const Weight& w = context().program->weights[item.weight];
  const int64_t panel = state_.kernels().panel;
  const int64_t begin = item.panels.begin * panel, end = item.panels.end * panel;
  parts_.clear();
  for (const WeightPiece& q : w.pieces) {
    if (q.n0 >= end || q.n0 + q.cols <= begin) continue;
    parts_.push_back({context().params[q.param] + q.offset, q.row_stride, q.col_stride, q.rows,
                      q.cols, q.k0, q.n0});
  }
  state_.kernels().pack(parts_.data(), static_cast<int32_t>(parts_.size()), w.k, w.n,
                        item.panels.begin, item.panels.end,
                        context().packed[item.weight].template as<T>());
}

template <class T>
void Worker<T>::zero(const ZeroGradient& item) {
  const auto [number, of] = item.share;
  const int64_t n = context().sizes[item.parameter];
  T* const grad = context().grads[item.parameter];
  std::fill(grad + n * number / of, grad + n * (number + 1) / of, T(0));
}

template class Worker<float>;
template class Worker<double>;
template size_t kernel_scratch(const BoundProgram<float>&, const Analysis&, const Kernels<float>&);
template size_t kernel_scratch(const BoundProgram<double>&, const Analysis&,
                               const Kernels<double>&);

}  // namespace cavs
