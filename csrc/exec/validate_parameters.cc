#include <stdexcept>

#include "exec/spaces.h"
#include "exec/validate.h"

namespace cavs {

void validate_parameters(const Program& program, const std::vector<int64_t>& sizes) {
  const auto need = [](bool ok, const std::string& label, const std::string& what) {
    if (!ok) throw std::invalid_argument("[" + label + "] " + what);
  };
  const auto size_of = [&](int32_t param, const std::string& label) {
    need(param >= 0 && param < static_cast<int32_t>(sizes.size()), label,
         "parameter " + std::to_string(param) + " of " + std::to_string(sizes.size()));
    return sizes[param];
  };
  for (size_t i = 0; i < program.weights.size(); ++i) {
    for (const WeightPiece& q : program.weights[i].pieces) {
      const std::string label = "weight " + std::to_string(i);
      const int64_t end = q.offset + (q.rows - 1) * q.row_stride + (q.cols - 1) * q.col_stride + 1;
      const int64_t size = size_of(q.param, label);
      need(end <= size, label,
           "reads up to element " + std::to_string(end) + " of parameter " +
               std::to_string(q.param) + ", which has " + std::to_string(size));
    }
  }
  const auto check = [&](const std::string& label, int32_t buffer, int64_t elements) {
    const Buffer& b = program.buffers[buffer];
    if (b.role != Role::kParam && b.role != Role::kGrad) return;
    const int64_t size = size_of(b.index, label);
    need(elements <= size, label,
         "uses " + std::to_string(elements) + " elements of parameter " + std::to_string(b.index) +
             ", which has " + std::to_string(size));
  };
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& b = program.buffers[i];
    if (b.role != Role::kParam && b.role != Role::kGrad) continue;
    const std::string label = "buffer " + std::to_string(i);
    const int64_t size = size_of(b.index, label);
    need(size % b.width == 0, label,
         "rows of " + std::to_string(b.width) + " of parameter " + std::to_string(b.index) +
             ", which has " + std::to_string(size) + " elements");
  }
  for (const Instruction& in : program.instructions) {
    const std::string label = in.label.empty() ? instruction_name(in.kind) : in.label;
    for (const Operand& o : in.inputs) check(label, o.buffer, int64_t{o.column} + o.width);
    for (const MapLoadSpec& l : in.loads) {
      check(label, l.operand.buffer, int64_t{l.operand.column} + l.operand.width);
    }
    for (const MapStoreSpec& s : in.stores) {
      check(label, s.buffer,
            s.column + int64_t{in.outer - 1} * s.outer_stride +
                (s.mode == StoreMode::kWrite ? in.inner : 1));
    }
    switch (in.kind) {
      case InstructionKind::kMap:
        break;
      case InstructionKind::kMatmulTN: {
        int64_t k = 0;
        for (int32_t i = 0; i < in.split; ++i) k += in.inputs[i].width;
        const Buffer& b = program.buffers[in.out.buffer];
        const int64_t stride = b.role == Role::kGrad ? b.width : in.out.width;
        need(in.out.width <= stride, label,
             "writes " + std::to_string(in.out.width) + " columns into rows of " +
                 std::to_string(stride));
        check(label, in.out.buffer, in.out.column + (k - 1) * stride + in.out.width);
        break;
      }
      case InstructionKind::kLookupGrad: {
        const int64_t size = size_of(in.argument2, label);
        need(size % in.inputs[0].width == 0, label,
             "rows of " + std::to_string(in.inputs[0].width) + " of parameter " +
                 std::to_string(in.argument2) + ", which has " + std::to_string(size) +
                 " elements");
        break;
      }
      default:
        check(label, in.out.buffer, int64_t{in.out.column} + in.out.width);
    }
  }
}

}  // namespace cavs
