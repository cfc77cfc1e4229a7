// matmul: out[r] (+)= [inputs side by side](r) @ weight.
#include <algorithm>
#include <utility>

#include "exec/bind.h"
#include "exec/checks.h"
#include "exec/cost.h"
#include "exec/thread_state.h"

namespace cavs {
namespace {

void validate(const AccessChecks& c, const Instruction& in) {
  c.check_inputs(in, 1);
  const Weight& w = c.check_weight_id(in);
  const int64_t k = width_of(in);
  c.need(k == w.k, c.differ("inner sizes differ", k, w.k));
  c.need(in.out.width == w.n, c.differ("columns of output and weight differ", in.out.width, w.n));
  c.check_out(in);
}

double cost(const Instruction& in) {
  return static_cast<double>(width_of(in)) * in.out.width * kMulAddNs;
}

ProductShape shape(const Program& program, const Instruction& in) {
  return {width_of(in), program.weights[in.weight].n};
}

Traffic traffic(const TrafficContext& context, const Instruction& in) {
  const Weight& w = context.program.weights[in.weight];
  return {2.0 * static_cast<double>(context.rows) * static_cast<double>(w.k * w.n),
          context.rows * in.out.width};
}

template <class T>
void bind(const Program&, const Instruction& in, const Addresses<T>& at, Bound<T>& b) {
  b.packed = (*at.packed)[in.weight];
}

template <class T>
size_t scratch(const BoundProgram<T>&, const Bound<T>& b, const Kernels<T>& kernels) {
  return kernels.matmul_scratch(b.k);
}

// The rows from the first to the last with a non-empty segment, if all operands sum the same
// segments. Rows that sum over the parents whose k-th child they are come together in a task, see
// schedule.h.
template <class T>
RowRange filled_rows(const Source<T>* sources, int32_t count, RowRange rows) {
  for (int32_t i = 0; i < count; ++i) {
    const Source<T>& s = sources[i];
    if (s.map != RowMap::kSegmentSum || s.offsets != sources->offsets) return rows;
  }
  if (count == 0) return rows;
  const int32_t* const offsets = sources->offsets;
  auto [begin, end] = rows;
  while (begin < end && offsets[begin] == offsets[begin + 1]) ++begin;
  while (begin < end && offsets[end - 1] == offsets[end]) --end;
  return {begin, end};
}

template <class T>
void run_panels(ThreadState<T>& thread, const Bound<T>& b, RowRange rows, Range panels) {
  const Kernels<T>& kernels = thread.kernels();
  const Source<T>* const sources = thread.sources(b);
  const RowRange filled = filled_rows(sources, b.count, rows);
  const int64_t first = int64_t{panels.begin} * kernels.panel;
  const int64_t last = std::min<int64_t>(int64_t{panels.end} * kernels.panel, b.n);
  const auto clear = [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      T* const row = b.out + (r - b.base) * b.stride;
      std::fill(row + first, row + last, T(0));
    }
  };
  if (!b.accumulate) clear(rows.begin, filled.begin), clear(filled.end, rows.end);
  kernels.matmul(sources, b.count, filled.begin, filled.end, b.packed, b.packed_k, b.k, b.n,
                 panels.begin, panels.end, b.out, b.stride, b.base, b.accumulate,
                 thread.kernel_memory());
}

template <class T>
void run(ThreadState<T>& thread, const Bound<T>& b, RowRange rows) {
  run_panels(thread, b, rows, {0, thread.panels(b.n)});
}

}  // namespace

constinit const InstructionTraits instructions::matmul = {
    .packed_weight = true,
    .validate = validate,
    .cost = cost,
    .shape = shape,
    .traffic = traffic,
    .float32 = {.bind = bind, .scratch = scratch, .rows = run, .panels = run_panels},
    .float64 = {.bind = bind, .scratch = scratch, .rows = run, .panels = run_panels}};

}  // namespace cavs
