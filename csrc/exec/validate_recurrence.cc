#include "exec/validate_recurrence.h"

#include "exec/spaces.h"

namespace cavs {

void RecurrenceChecks::check(const Instruction& in, const std::string& label) {
  label_ = label;
  const Instruction& lstm = forward_of(in);
  switch (in.kind) {
    case InstructionKind::kLstm:
      check_rows(in, 1);
      check_weight(in);
      check_out(in.out.buffer, in.out.column, in.out.width, in.space);
      return;
    case InstructionKind::kLstmGrad:
      check_rows(in, 2);
      for (const Operand& o : in.inputs) {
        need(o.width == lstm.out.width, differ("widths of h differ", o.width, lstm.out.width));
      }
      need(in.out.width == lstm.inputs.at(0).width,
           differ("widths of x differ", in.out.width, lstm.inputs[0].width));
      check_out(in.out.buffer, in.out.column, in.out.width, in.space);
      return;
    default: {
      check_rows(in, 1);
      check_buffer_id(in.out.buffer);
      const Buffer& b = p_.buffers[in.out.buffer];
      need(b.role == Role::kGrad && b.index == in.argument2 && in.out.column == 0,
           "adds the gradient of parameter " + std::to_string(in.argument2) + " into " +
               role_name(b.role) + " buffer " + std::to_string(in.out.buffer));
      need(in.accumulate, "does not add into a gradient");
    }
  }
}

void RecurrenceChecks::check_rows(const Instruction& in, size_t inputs) const {
  need(in.space == kVertexSpace, "runs over " + space_name(in.space) + ", needs vertex");
  need(in.inputs.size() == inputs,
       "has " + std::to_string(in.inputs.size()) + " inputs, needs " + std::to_string(inputs));
  for (const Operand& o : in.inputs) {
    check_operand(o, in.space);
    need(o.map == RowMap::kSelf, "reads rows that are not stored as they are");
  }
}

void RecurrenceChecks::check_weight(const Instruction& in) const {
  need(in.weight >= 0 && in.weight < static_cast<int32_t>(p_.weights.size()),
       "weight " + std::to_string(in.weight) + " of " + std::to_string(p_.weights.size()));
  const Weight& w = p_.weights[in.weight];
  const int64_t x = in.inputs[0].width, h = in.out.width;
  need(h > 0 && w.k == x + h + 1, differ("rows of the weight differ", w.k, x + h + 1));
  need(w.n == 4 * h, differ("columns of the weight differ", w.n, 4 * h));
  for (const WeightPiece& q : w.pieces) {
    const bool whole =
        (q.k0 == 0 && q.rows == x) || (q.k0 == x && q.rows == h) || (q.k0 == x + h && q.rows == 1);
    need(whole && q.n0 % h == 0 && q.cols == h && q.col_stride == 1,
         "a piece of " + std::to_string(q.rows) + " x " + std::to_string(q.cols) + " at (" +
             std::to_string(q.k0) + ", " + std::to_string(q.n0) + ") is no matrix of one gate");
  }
}

const Instruction& RecurrenceChecks::forward_of(const Instruction& in) const {
  const Instruction* found = nullptr;
  for (const Instruction& other : p_.instructions) {
    if (other.kind != InstructionKind::kLstm || other.argument != in.argument) continue;
    need(found == nullptr, "two LSTMs of number " + std::to_string(in.argument));
    need(!other.inputs.empty(), "an LSTM without input");
    found = &other;
  }
  need(found != nullptr, "there is no LSTM of number " + std::to_string(in.argument));
  return *found;
}

}  // namespace cavs
