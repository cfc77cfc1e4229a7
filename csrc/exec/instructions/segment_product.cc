// segment_product: out[r] = product over the segment of inputs[0]; ones where it is empty.
#include "exec/checks.h"
#include "exec/thread_state.h"

namespace cavs {
namespace {

void validate(const AccessChecks& c, const Instruction& in) {
  c.check_inputs(in, 1);
  c.need(in.inputs[0].map == RowMap::kSegmentSum, "reads no segments");
  const int32_t width = in.inputs[0].width;
  c.need(width == in.out.width, c.differ("widths of input and output differ", width, in.out.width));
  c.check_out(in);
}

template <class T>
void run(ThreadState<T>& thread, const Bound<T>& b, RowRange rows) {
  thread.kernels().segment_product(*thread.sources(b), rows.begin, rows.end, b.out, b.stride,
                                   b.base);
}

}  // namespace

constinit const InstructionTraits instructions::segment_product = {
    .validate = validate, .float32 = {.rows = run}, .float64 = {.rows = run}};

}  // namespace cavs
