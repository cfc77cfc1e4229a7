#include "exec/validate.h"

#include "exec/product.h"
#include "exec/spaces.h"
#include "exec/validate_access.h"
#include "exec/validate_recurrence.h"

namespace cavs {
namespace {

class Validator : AccessChecks {
 public:
  explicit Validator(const Program& p) : AccessChecks(p) {}

  void check() {
    for (size_t i = 1; i < p_.kinds.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        need(p_.kinds[i] != p_.kinds[j], "kind key " + std::to_string(p_.kinds[i]) + " twice");
      }
    }
    const auto stages = static_cast<int32_t>(p_.stages.size());
    for (size_t i = 0; i < p_.buffers.size(); ++i) {
      const Buffer& b = p_.buffers[i];
      label_ = "buffer " + std::to_string(i);
      check_space(b.space);
      need(b.width > 0, "width " + std::to_string(b.width) + ", needs at least 1");
      need(b.held == Held::kAll || (b.role == Role::kArena && b.space == kVertexSpace),
           std::string("holds ") + held_name(b.held) + " only, is " + role_name(b.role) + " of " +
               space_name(b.space) + ": needs an arena buffer of vertex");
      if (b.role == Role::kArena) {
        need(b.first >= 0 && b.first <= b.last && b.last < stages,
             "lives in stages [" + std::to_string(b.first) + ", " + std::to_string(b.last) +
                 "] of " + std::to_string(stages));
      } else if (b.role != Role::kScratch && b.role != Role::kOnes) {
        const int32_t least = b.role == Role::kCount ? kFewestCount : 0;
        need(b.role != Role::kCount || b.width == 1,
             "counts of width " + std::to_string(b.width) + ", a count is one number");
        need(b.index >= least && b.index < kMostIndices, "index " + std::to_string(b.index) +
                                                             " outside [0, " +
                                                             std::to_string(kMostIndices) + ")");
      }
    }
    for (size_t i = 0; i < p_.weights.size(); ++i) check_weight(i);
    for (const Instruction& in : p_.instructions) {
      label_ = in.label.empty() ? instruction_name(in.kind) : in.label;
      check_space(in.space);
      check_instruction(in);
    }
    scratch_.assign(p_.buffers.size(), -1);
    used_.assign(p_.instructions.size(), false);
    for (stage_ = 0; stage_ < stages; ++stage_) check_stage(p_.stages[stage_]);
    label_ = "program";
    if (p_.loss >= 0) {
      check_buffer_id(p_.loss);
      const Buffer& b = p_.buffers[p_.loss];
      need(b.role == Role::kArena && b.space == kOneSpace,
           "the loss is buffer " + std::to_string(p_.loss) + " of " + role_name(b.role) + " in " +
               space_name(b.space) + ", needs an arena buffer in one");
    }
    for (int32_t o : p_.outputs) {
      check_buffer_id(o);
      need(p_.buffers[o].role == Role::kArena, "output " + std::to_string(o) + " is a " +
                                                   role_name(p_.buffers[o].role) +
                                                   " buffer, needs an arena buffer");
      need(p_.buffers[o].held == Held::kAll && !is_present(p_.buffers[o].space),
           "output " + std::to_string(o) + " has " + rows_name(p_.buffers[o]));
    }
  }

 private:
  void check_space(Space s) const {
    const int32_t spaces = kVertexKind0 + 2 * static_cast<int32_t>(p_.kinds.size());
    if (is_present(s)) {
      need(feature_of(s) < kMostIndices,
           "rows where int feature " + std::to_string(feature_of(s)) + " is present");
    } else {
      need(s >= 0 && s < spaces,
           "space " + std::to_string(s) + " outside [0, " + std::to_string(spaces) + ")");
    }
  }

  void check_weight(size_t i) {
    const Weight& w = p_.weights[i];
    label_ = "weight " + std::to_string(i);
    need(w.k > 0 && w.n > 0,
         "size " + std::to_string(w.k) + " x " + std::to_string(w.n) + ", needs at least 1 x 1");
    for (const WeightPiece& q : w.pieces) {
      need(q.param >= 0 && q.offset >= 0 && q.row_stride >= 0 && q.col_stride >= 0,
           "a piece of parameter " + std::to_string(q.param) + " has a negative number");
      need(q.rows > 0 && q.cols > 0 && q.k0 >= 0 && q.n0 >= 0 && q.k0 + q.rows <= w.k &&
               q.n0 + q.cols <= w.n,
           "a piece of " + std::to_string(q.rows) + " x " + std::to_string(q.cols) + " at (" +
               std::to_string(q.k0) + ", " + std::to_string(q.n0) + ") leaves the matrix of " +
               std::to_string(w.k) + " x " + std::to_string(w.n));
    }
  }

  void check_inputs(const Instruction& in, size_t least) const {
    need(in.inputs.size() >= least, "has " + std::to_string(in.inputs.size()) +
                                        " inputs, needs at least " + std::to_string(least));
    for (const Operand& o : in.inputs) check_operand(o, in.space);
  }

  void check_instruction(const Instruction& in) const {
    const auto width = [&](size_t i) { return in.inputs[i].width; };
    switch (in.kind) {
      case InstructionKind::kMatmul: {
        check_inputs(in, 1);
        need(in.weight >= 0 && in.weight < static_cast<int32_t>(p_.weights.size()),
             "weight " + std::to_string(in.weight) + " of " + std::to_string(p_.weights.size()));
        const Weight& w = p_.weights[in.weight];
        int64_t k = 0;
        for (const Operand& o : in.inputs) k += o.width;
        need(k == w.k, differ("inner sizes differ", k, w.k));
        need(in.out.width == w.n, differ("columns of output and weight differ", in.out.width, w.n));
        check_out(in.out.buffer, in.out.column, in.out.width, in.space);
        return;
      }
      case InstructionKind::kMap:
        check_map(in);
        return;
      case InstructionKind::kSegmentMax:
        check_inputs(in, 1);
        need(in.inputs[0].map == RowMap::kSegmentSum, "reads no segments");
        [[fallthrough]];
      case InstructionKind::kCopy:
      case InstructionKind::kCrossEntropyGrad:
        check_inputs(in, 1);
        need(width(0) == in.out.width,
             differ("widths of input and output differ", width(0), in.out.width));
        check_out(in.out.buffer, in.out.column, in.out.width, in.space);
        break;
      case InstructionKind::kCrossEntropy:
        check_inputs(in, 1);
        need(in.out.width == 1, differ("width of a loss", in.out.width, 1));
        check_out(in.out.buffer, in.out.column, in.out.width, in.space);
        break;
      case InstructionKind::kMatmulTN: {
        check_inputs(in, 2);
        need(in.split > 0 && in.split < static_cast<int32_t>(in.inputs.size()),
             "split " + std::to_string(in.split) + " of " + std::to_string(in.inputs.size()) +
                 " inputs");
        int64_t k = 0, n = 0;
        for (size_t i = 0; i < in.inputs.size(); ++i) {
          (i < static_cast<size_t>(in.split) ? k : n) += in.inputs[i].width;
        }
        need(in.out.width == n, differ("columns of output and product differ", in.out.width, n));
        check_sum(in, k * n);
        return;
      }
      case InstructionKind::kSumRows:
        check_inputs(in, 1);
        need(width(0) == in.out.width,
             differ("widths of input and output differ", width(0), in.out.width));
        check_sum(in, in.out.width);
        return;
      case InstructionKind::kLookupGrad:
        check_inputs(in, 1);
        check_rows(in);
        need(in.argument >= 0 && in.argument < kMostIndices && in.argument2 >= 0,
             "int feature " + std::to_string(in.argument) + ", parameter " +
                 std::to_string(in.argument2));
        for (const Instruction& other : p_.instructions) {
          if (other.kind != in.kind || other.argument2 != in.argument2 || other.inputs.empty()) {
            continue;
          }
          need(other.inputs[0].width == width(0),
               differ("two row widths of one table", width(0), other.inputs[0].width));
        }
        return;
      case InstructionKind::kLstm:
      case InstructionKind::kLstmGrad:
      case InstructionKind::kLstmWeightGrad:
        RecurrenceChecks(p_).check(in, label_);
        return;
    }
    if (in.kind == InstructionKind::kCrossEntropy ||
        in.kind == InstructionKind::kCrossEntropyGrad) {
      check_rows(in);
      need(in.argument >= 0 && in.argument < kMostIndices,
           "int feature " + std::to_string(in.argument));
      const size_t most = in.kind == InstructionKind::kCrossEntropyGrad ? 2 : 1;
      need(in.inputs.size() <= most, "has " + std::to_string(in.inputs.size()) +
                                         " inputs, takes at most " + std::to_string(most));
      if (in.inputs.size() > 1) need(width(1) == 1, differ("width of a slope", width(1), 1));
    }
  }

  // Kernels that take each row as it lies.
  void check_rows(const Instruction& in) const {
    for (const Operand& o : in.inputs) {
      need(o.map != RowMap::kSegmentSum, "reads sums of segments: copy them first");
    }
  }

  // Outputs of sums over rows: a dense gradient or an arena buffer in one.
  void check_sum(const Instruction& in, int64_t elements) const {
    check_buffer_id(in.out.buffer);
    const Buffer& b = p_.buffers[in.out.buffer];
    need(in.out.column >= 0, "column " + std::to_string(in.out.column));
    if (b.role == Role::kGrad) return;
    need(b.role == Role::kArena && b.space == kOneSpace,
         "sums into " + std::string(role_name(b.role)) + " buffer " +
             std::to_string(in.out.buffer) + " of " + space_name(b.space));
    need(in.out.column + elements <= b.width, "writes " + std::to_string(elements) +
                                                  " elements at " + std::to_string(in.out.column) +
                                                  " of buffer " + std::to_string(in.out.buffer) +
                                                  ", which has " + std::to_string(b.width));
  }

  void check_map(const Instruction& in) const {
    const auto loads = static_cast<int32_t>(in.loads.size());
    need(in.outer > 0 && in.inner > 0, "iterates over " + std::to_string(in.outer) + " x " +
                                           std::to_string(in.inner) + " elements");
    need(in.registers >= loads && in.registers < INT16_MAX,
         std::to_string(in.registers) + " registers for " + std::to_string(loads) + " loads");
    need(!in.stores.empty(), "stores nothing");
    need(!in.outward || is_vertex(in.space),
         "sums over parents of rows of " + space_name(in.space));
    const auto reach = [&](int32_t outer_stride, bool scalar) {
      need(outer_stride >= 0, "outer stride " + std::to_string(outer_stride));
      return static_cast<int64_t>(in.outer - 1) * outer_stride + (scalar ? 1 : in.inner);
    };
    const auto check_register = [&](int32_t r) {
      need(r >= 0 && r < in.registers,
           "register " + std::to_string(r) + " of " + std::to_string(in.registers));
    };
    for (const MapLoadSpec& load : in.loads) {
      check_operand(load.operand, in.space, is_of_parents(in, load.operand));
      const int64_t columns = reach(load.outer_stride, load.scalar);
      need(columns <= load.operand.width, "reads " + std::to_string(columns) +
                                              " columns of an operand of " +
                                              std::to_string(load.operand.width));
    }
    for (const MapOp& op : in.ops) {
      need(!in.outward || op.code != MapOpcode::kUniform, "draws numbers for each parent");
      check_register(op.dst);
      check_register(op.a);
      check_register(op.b);
      check_register(op.c);
    }
    for (const MapStoreSpec& store : in.stores) {
      check_register(store.reg);
      need(!in.outward || store.mode == StoreMode::kWrite, "sums over parents and over columns");
      const int64_t columns = reach(store.outer_stride, store.mode != StoreMode::kWrite);
      check_out(store.buffer, store.column, columns, in.space);
    }
  }

  template <class F>
  void each_operand(const Instruction& in, F&& f) const {
    for (const Operand& o : in.inputs) f(o);
    for (const MapLoadSpec& load : in.loads) f(load.operand);
  }
  template <class F>
  void each_out(const Instruction& in, F&& f) const {
    if (in.kind == InstructionKind::kMap) {
      for (const MapStoreSpec& store : in.stores) f(store.buffer);
    } else if (in.kind != InstructionKind::kLookupGrad) {
      f(in.out.buffer);
    }
  }

  struct Columns {
    int32_t buffer;
    int64_t begin, end;
  };
  static void add_written(const Instruction& in, std::vector<Columns>& written) {
    if (in.kind != InstructionKind::kMap) {
      written.push_back({in.out.buffer, in.out.column, int64_t{in.out.column} + in.out.width});
      return;
    }
    for (const MapStoreSpec& s : in.stores) {
      const int64_t last = s.column + int64_t{in.outer - 1} * s.outer_stride;
      written.push_back({s.buffer, s.column, last + (s.mode == StoreMode::kWrite ? in.inner : 1)});
    }
  }

  void check_live(int32_t id, int32_t body) {
    const Buffer& b = p_.buffers[id];
    if (b.role == Role::kArena) {
      need(b.first <= stage_ && stage_ <= b.last,
           "uses buffer " + std::to_string(id) + " in stage " + std::to_string(stage_) +
               ", it lives in [" + std::to_string(b.first) + ", " + std::to_string(b.last) + "]");
    } else if (b.role == Role::kScratch) {
      need(p_.stages[stage_].kind != StageKind::kGlobal,
           "scratch buffer " + std::to_string(id) + " in a global stage");
      const int64_t place = (static_cast<int64_t>(stage_) << 32) + body;
      need(scratch_[id] < 0 || scratch_[id] == place,
           "scratch buffer " + std::to_string(id) + " is used in stage " +
               std::to_string(scratch_[id] >> 32) + " and in stage " + std::to_string(stage_) +
               " (or two bodies of it)");
      scratch_[id] = place;
    }
  }

  // Its terms come from one task after the other, so nothing of it may be overwritten or read yet,
  // and what it reads must outlive the chunks of the task.
  void check_sum_of_task(const Instruction& in) const {
    if (in.kind != InstructionKind::kLookupGrad) {
      need(in.accumulate && p_.buffers[in.out.buffer].role == Role::kGrad,
           "is a sum in a loop that does not add into a gradient");
    }
    each_operand(in, [&](const Operand& o) {
      need(p_.buffers[o.buffer].role != Role::kScratch,
           "sums scratch buffer " + std::to_string(o.buffer) + " over the rows of a task");
    });
  }

  void check_body(const std::vector<int32_t>& body, Space space, int32_t number) {
    const Stage& stage = p_.stages[stage_];
    const bool global = stage.kind == StageKind::kGlobal;
    std::vector<Columns> written;
    bool sums = false;
    for (int32_t id : body) {
      label_ = stage.label.empty() ? "stage " + std::to_string(stage_) : stage.label;
      need(id >= 0 && id < static_cast<int32_t>(p_.instructions.size()),
           "instruction " + std::to_string(id) + " of " + std::to_string(p_.instructions.size()));
      const Instruction& in = p_.instructions[id];
      if (!in.label.empty()) label_ = in.label;
      need(!used_[id], "stands in two bodies");
      used_[id] = true;
      const bool sum = is_global(in.kind);
      if (stage.kind == StageKind::kLoop) {
        need(sum || !sums, "stands behind a sum over the rows of the task");
        sums |= sum;
        if (sum) check_sum_of_task(in);
      } else {
        need(sum == global,
             std::string(instruction_name(in.kind)) +
                 (global ? " in a global stage" : " needs a global stage of its own, or a loop"));
      }
      const bool own = in.space == space || (is_vertex(space) && in.space == edges_of(space));
      need(own || (global && space < 0),
           "runs over " + space_name(in.space) + " in a stage over " + space_name(space));
      if (!sum) add_written(in, written);
      each_operand(in, [&](const Operand& o) {
        need(stage.kind != StageKind::kLoop || p_.buffers[o.buffer].role != Role::kGrad,
             "reads gradient " + std::to_string(p_.buffers[o.buffer].index) + " in a loop");
        check_live(o.buffer, number);
      });
      each_out(in, [&](int32_t b) { check_live(b, number); });
    }
    // Another chunk may not have written its rows yet, or not in time. Parents of vertices without
    // children are of other kinds than these.
    const int32_t kind = kind_of(space);
    const bool leaves = kind >= 0 && p_.kinds[kind] % 2 == 0;
    for (int32_t id : body) {
      const Instruction& in = p_.instructions[id];
      if (is_global(in.kind)) continue;
      each_operand(in, [&](const Operand& o) {
        const bool scratch = p_.buffers[o.buffer].role == Role::kScratch;
        bool same_stage = stage.kind == StageKind::kRows && space != kOneSpace;
        if (same_stage) {
          same_stage = false;
          const bool parents = o.array == Array::kNthParents || o.array == Array::kParents;
          const bool other_rows = leaves && parents;
          for (const Columns& w : written) {
            const bool meet = w.begin < int64_t{o.column} + o.width && o.column < w.end;
            same_stage |= w.buffer == o.buffer && meet && !other_rows;
          }
        }
        label_ = in.label.empty() ? instruction_name(in.kind) : in.label;
        need(is_local(o) || (!scratch && !same_stage), "reads buffer " + std::to_string(o.buffer) +
                                                           " through " + array_name(o.array) +
                                                           " in the stage that writes it");
      });
    }
  }

  void check_stage(const Stage& stage) {
    label_ = stage.label.empty() ? "stage " + std::to_string(stage_) : stage.label;
    switch (stage.kind) {
      case StageKind::kRows: {
        check_space(stage.space);
        check_body(stage.body, stage.space, 0);
        return;
      }
      case StageKind::kLoop:
        need(stage.bodies.size() == p_.kinds.size(),
             differ("bodies and kinds differ", static_cast<int64_t>(stage.bodies.size()),
                    static_cast<int64_t>(p_.kinds.size())));
        for (size_t k = 0; k < stage.bodies.size(); ++k) {
          const auto kind_space = static_cast<Space>(kVertexKind0 + 2 * k);
          check_body(stage.bodies[k], kind_space, static_cast<int32_t>(k));
        }
        return;
      case StageKind::kGlobal:
        need(!stage.body.empty(), "0 instructions, a global stage has one or more");
        check_body(stage.body, -1, 0);
        check_terms(stage.body);
        return;
    }
  }

  // Several are products that add to one gradient; the first may write all that the others add to.
  void check_terms(const std::vector<int32_t>& body) {
    const Instruction& lead = p_.instructions[body[0]];
    for (size_t i = 0; i < body.size() && body.size() > 1; ++i) {
      const Instruction& in = p_.instructions[body[i]];
      label_ = in.label.empty() ? instruction_name(in.kind) : in.label;
      need(lead.kind == InstructionKind::kMatmulTN && in.kind == lead.kind,
           "stands behind another sum in a global stage, where only products may");
      const Buffer& out = p_.buffers[in.out.buffer];
      need(out.role == Role::kGrad && in.out.buffer == lead.out.buffer,
           "adds to another gradient than the product before it in its stage");
      const Product::Cell cell = cell_of(p_, in);
      need(cell.column_end <= out.width,
           "columns " + std::to_string(cell.column) + " to " + std::to_string(cell.column_end) +
               " of a gradient that has " + std::to_string(out.width));
      need(i == 0 || in.accumulate, "overwrites the product before it in its stage");
      need(lead.accumulate || cell_of(p_, lead).holds(cell),
           "adds to what the product before it in its stage does not write");
    }
  }

  int32_t stage_ = 0;
  std::vector<int64_t> scratch_;
  std::vector<bool> used_;
};

}  // namespace

void validate(const Program& program) { Validator(program).check(); }

}  // namespace cavs
