// sum_rows: out[0] (+)= sum over rows r of inputs[0](r).
#include <algorithm>

#include "exec/checks.h"
#include "exec/thread_state.h"

namespace cavs {
namespace {

void validate(const AccessChecks& c, const Instruction& in) {
  c.check_inputs(in, 1);
  c.check_sum(in, in.out.width);
}

Traffic traffic(const TrafficContext&, const Instruction& in) { return {0, in.out.width}; }

// Sum blocks of a fixed number of rows, then the blocks: the order is the same for any number of
// threads, and many rows lose less precision.
template <class T>
void run(ThreadState<T>& thread, const Item& item) {
  constexpr int64_t kBlock = 256;
  const auto& [id, columns, extent] = std::get<SumColumns>(item);
  const Bound<T>& b = thread.bound.instructions[id];
  const RowRange rows = thread.rows_of(extent, id);
  Source<T> source = *thread.sources(b);
  source.data += columns.begin;
  source.width = columns.end - columns.begin;
  T* const out = b.out + columns.begin;
  T* const partial = thread.kernel_memory();
  if (!b.accumulate) std::fill(out, out + source.width, T(0));
  for (int64_t r = rows.begin; r < rows.end; r += kBlock) {
    const int64_t end = std::min<int64_t>(r + kBlock, rows.end);
    thread.kernels().sum_rows(source, r, end, partial, false);
    for (int32_t j = 0; j < source.width; ++j) out[j] += partial[j];
  }
}

}  // namespace

constinit const InstructionTraits instructions::sum_rows = {.cut = Cut::kColumns,
                                                            .validate = validate,
                                                            .traffic = traffic,
                                                            .float32 = {.sum = run},
                                                            .float64 = {.sum = run}};

}  // namespace cavs
