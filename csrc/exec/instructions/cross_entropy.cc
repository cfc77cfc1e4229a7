// cross_entropy: out[r] = loss of logits inputs[0](r) with label int feature `argument`.
// cross_entropy_grad: out[r] = (softmax - onehot) * inputs[1](r), a number; 1 without inputs[1].
#include "exec/bind.h"
#include "exec/checks.h"
#include "exec/cost.h"
#include "exec/thread_state.h"

namespace cavs {
namespace {

void check_labels(const AccessChecks& c, const Instruction& in, size_t most) {
  c.check_stored_rows(in);
  c.check_index_feature(in);
  c.need(in.inputs.size() <= most, "has " + std::to_string(in.inputs.size()) +
                                       " inputs, takes at most " + std::to_string(most));
}

void validate(const AccessChecks& c, const Instruction& in) {
  c.check_inputs(in, 1);
  c.need(in.out.width == 1, c.differ("width of a loss", in.out.width, 1));
  c.check_out(in);
  check_labels(c, in, 1);
}

void validate_grad(const AccessChecks& c, const Instruction& in) {
  c.check_inputs(in, 1);
  const int32_t width = in.inputs[0].width;
  c.need(width == in.out.width, c.differ("widths of input and output differ", width, in.out.width));
  c.check_out(in);
  check_labels(c, in, 2);
  if (in.inputs.size() < 2) return;
  c.need(in.inputs[1].width == 1, c.differ("width of a slope", in.inputs[1].width, 1));
}

double cost(const Instruction& in) { return in.inputs[0].width * kFunctionNs + 10; }

int64_t classes(const Instruction& in, const std::vector<int64_t>&) { return in.inputs[0].width; }

template <class T>
void bind(const Program&, const Instruction& in, const Addresses<T>& at, Bound<T>& b) {
  b.index = at.index_features->rows(in.argument, in.space).data();
}

template <class T>
void run(ThreadState<T>& thread, const Bound<T>& b, RowRange rows) {
  thread.kernels().cross_entropy(*thread.sources(b), nullptr, b.index, rows.begin, rows.end, b.out,
                                 b.stride, b.base, nullptr, 0, 0);
}

template <class T>
void run_grad(ThreadState<T>& thread, const Bound<T>& b, RowRange rows) {
  const Source<T>* const sources = thread.sources(b);
  const Source<T>* const slope = b.count > 1 ? sources + 1 : nullptr;
  thread.kernels().cross_entropy(*sources, slope, b.index, rows.begin, rows.end, nullptr, 0, 0,
                                 b.out, b.stride, b.base);
}

}  // namespace

constinit const InstructionTraits instructions::cross_entropy = {
    .validate = validate,
    .cost = cost,
    .index_limit = classes,
    .float32 = {.bind = bind, .rows = run},
    .float64 = {.bind = bind, .rows = run}};

constinit const InstructionTraits instructions::cross_entropy_grad = {
    .validate = validate_grad,
    .cost = cost,
    .index_limit = classes,
    .float32 = {.bind = bind, .rows = run_grad},
    .float64 = {.bind = bind, .rows = run_grad}};

}  // namespace cavs
