// The LSTM number `argument` over all vertices of a batch of chains, on devices only. Weight
// `weight` maps [x, h of the step before, 1] to gates i, f, g, o; each of its pieces is all rows of
// x, of h or of 1, and one gate.
// lstm: out = h of inputs[0] = x.
// lstm_grad: out = cotangent of x; inputs are h and its cotangent.
// lstm_weight_grad: gradient of parameter `argument2` += its pieces; inputs: cotangent of x.
#include "exec/checks.h"
#include "exec/names.h"
#include "exec/spaces.h"

namespace cavs {
namespace {

void check_rows(const AccessChecks& c, const Instruction& in, size_t inputs) {
  c.need(in.space == kVertexSpace, "runs over " + space_name(in.space) + ", needs vertex");
  c.need(in.inputs.size() == inputs,
         "has " + std::to_string(in.inputs.size()) + " inputs, needs " + std::to_string(inputs));
  for (const Operand& o : in.inputs) {
    c.check_operand(o, in.space);
    c.need(o.map == RowMap::kSelf, "reads rows through an index or segments, needs stored rows");
  }
}

void check_weight(const AccessChecks& c, const Instruction& in) {
  const Weight& w = c.check_weight_id(in);
  const int64_t x = in.inputs[0].width, h = in.out.width;
  c.need(h > 0 && w.k == x + h + 1, c.differ("rows of the weight differ", w.k, x + h + 1));
  c.need(w.n == 4 * h, c.differ("columns of the weight differ", w.n, 4 * h));
  for (const WeightPiece& q : w.pieces) {
    const bool whole =
        (q.k0 == 0 && q.rows == x) || (q.k0 == x && q.rows == h) || (q.k0 == x + h && q.rows == 1);
    c.need(whole && q.n0 % h == 0 && q.cols == h && q.col_stride == 1,
           "a piece of " + std::to_string(q.rows) + " x " + std::to_string(q.cols) + " at (" +
               std::to_string(q.k0) + ", " + std::to_string(q.n0) + ") is no matrix of one gate");
  }
}

// The forward instruction of the LSTM.
const Instruction& forward_of(const AccessChecks& c, const Instruction& in) {
  const Instruction* found = nullptr;
  for (const Instruction& other : c.program().instructions) {
    if (other.type != InstructionType::kLstm || other.argument != in.argument) continue;
    c.need(found == nullptr, "two LSTMs of number " + std::to_string(in.argument));
    c.need(!other.inputs.empty(), "an LSTM without input");
    found = &other;
  }
  c.need(found != nullptr, "there is no LSTM of number " + std::to_string(in.argument));
  return *found;
}

void validate(const AccessChecks& c, const Instruction& in) {
  forward_of(c, in);
  check_rows(c, in, 1);
  check_weight(c, in);
  c.check_out(in);
}

void validate_grad(const AccessChecks& c, const Instruction& in) {
  const Instruction& lstm = forward_of(c, in);
  check_rows(c, in, 2);
  for (const Operand& o : in.inputs) {
    c.need(o.width == lstm.out.width, c.differ("widths of h differ", o.width, lstm.out.width));
  }
  const int32_t x = lstm.inputs[0].width;
  c.need(in.out.width == x, c.differ("widths of x differ", in.out.width, x));
  c.check_out(in);
}

void validate_weight_grad(const AccessChecks& c, const Instruction& in) {
  forward_of(c, in);
  check_rows(c, in, 1);
  c.check_buffer_id(in.out.buffer);
  const Buffer& b = c.program().buffers[in.out.buffer];
  c.need(b.role == Role::kGrad && b.index == in.argument2 && in.out.column == 0,
         "adds the gradient of parameter " + std::to_string(in.argument2) + " into " +
             name_of(b.role) + " buffer " + std::to_string(in.out.buffer));
  c.need(in.accumulate, "does not add into a gradient");
}

Traffic traffic(const TrafficContext& context, const Instruction& in) {
  const Weight& w = context.program.weights[in.weight];
  return {2.0 * static_cast<double>(context.rows) * static_cast<double>(w.k * w.n),
          context.rows * in.out.width};
}

Traffic weight_traffic(const TrafficContext&, const Instruction& in) { return {0, in.out.width}; }

}  // namespace

constinit const InstructionTraits instructions::lstm = {
    .cut = Cut::kWhole, .validate = validate, .traffic = traffic};
constinit const InstructionTraits instructions::lstm_grad = {.cut = Cut::kWhole,
                                                             .validate = validate_grad};
constinit const InstructionTraits instructions::lstm_weight_grad = {
    .cut = Cut::kWhole, .validate = validate_weight_grad, .traffic = weight_traffic};

}  // namespace cavs
