#include "exec/validate.h"

#include "exec/checks.h"
#include "exec/names.h"
#include "exec/product.h"
#include "exec/spaces.h"

namespace cavs {
namespace {

class Validator : AccessChecks {
 public:
  explicit Validator(const Program& p) : AccessChecks(p) {}

  void check() {
    for (size_t i = 1; i < p_.kinds.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        need(p_.kinds[i] != p_.kinds[j],
             "kind key " + std::to_string(p_.kinds[i]) + " occurs twice");
      }
    }
    check_structures();
    const auto stages = static_cast<int32_t>(p_.stages.size());
    for (size_t i = 0; i < p_.buffers.size(); ++i) {
      const Buffer& b = p_.buffers[i];
      label_ = "buffer " + std::to_string(i);
      check_space(b.space);
      need(b.width > 0, "width " + std::to_string(b.width) + ", needs at least 1");
      need(b.held == Held::kAll || (b.role == Role::kArena && is_every_vertex(b.space)),
           std::string("holds ") + name_of(b.held) + " only, is " + name_of(b.role) + " of " +
               space_name(b.space) + ": needs an arena buffer of vertex");
      if (b.role == Role::kArena) {
        need(b.first >= 0 && b.first <= b.last && b.last < stages,
             "is live in stages [" + std::to_string(b.first) + ", " + std::to_string(b.last) +
                 "] of " + std::to_string(stages));
      } else if (b.role != Role::kScratch && b.role != Role::kOnes) {
        const int32_t least = b.role == Role::kCount ? kEdgeRows - 2 * (p_.structures - 1) : 0;
        need(b.role != Role::kCount || b.width == 1,
             "counts of width " + std::to_string(b.width) + ", a count is one number");
        need(b.index >= least && b.index < kMostIndices, "index " + std::to_string(b.index) +
                                                             " outside [0, " +
                                                             std::to_string(kMostIndices) + ")");
      }
    }
    for (size_t i = 0; i < p_.weights.size(); ++i) check_weight(i);
    for (const Instruction& in : p_.instructions) {
      label_ = label_of(in);
      check_space(in.space);
      check_instruction(in);
    }
    scratch_.assign(p_.buffers.size(), -1);
    used_.assign(p_.instructions.size(), false);
    for (stage_ = 0; stage_ < stages; ++stage_) check_stage(p_.stages[stage_]);
    label_ = "program";
    need(p_.forward_stages >= -1 && p_.forward_stages <= stages,
         std::to_string(p_.forward_stages) + " stages before cotangents of " +
             std::to_string(stages));
    if (p_.loss >= 0) {
      check_buffer_id(p_.loss);
      const Buffer& b = p_.buffers[p_.loss];
      need(b.role == Role::kArena && b.space == kOneSpace,
           "the loss is buffer " + std::to_string(p_.loss) + " of " + name_of(b.role) + " in " +
               space_name(b.space) + ", needs an arena buffer in one");
    }
    for (int32_t o : p_.outputs) {
      check_buffer_id(o);
      const Buffer& b = p_.buffers[o];
      const std::string output = "output " + std::to_string(o);
      need(b.role == Role::kArena || is_copied(o),
           output + " is a " + name_of(b.role) + " buffer of " + space_name(b.space) +
               ", needs an arena buffer, or a scratch buffer of a stage over all its rows");
      need(b.held == Held::kAll && !is_selected(b.space), output + " has " + rows_name(b));
    }
  }

 private:
  // True if a stage over all rows of a scratch buffer, with one body, writes it.
  bool is_copied(int32_t buffer) const {
    const Buffer& b = p_.buffers[buffer];
    if (b.role != Role::kScratch || scratch_[buffer] < 0) return false;
    const Stage& stage = p_.stages[scratch_[buffer] >> 32];
    return stage.type == StageType::kRows && stage.space == b.space && is_every_vertex(b.space);
  }

  void check_structures() {
    label_ = "program";
    need(p_.structures >= 1 && p_.structures <= kMostStructures,
         std::to_string(p_.structures) + " structures, needs 1 to " +
             std::to_string(kMostStructures));
    const auto check = [&](int32_t s, const std::string& what) {
      need(s >= 0 && s < p_.structures,
           what + " of structure " + std::to_string(s) + " of " + std::to_string(p_.structures));
    };
    for (const uint64_t key : p_.kinds) check(structure_of(key), "kind " + std::to_string(key));
    for (const int32_t s : p_.int_structures) check(s, "an int feature");
    for (const LinkType& link : p_.links)
      check(link.target, "a link"), check(link.source, "a link");
  }

  void check_space(Space s) const {
    const int32_t spaces = kVertexKind0 + 2 * static_cast<int32_t>(p_.kinds.size());
    if (is_pairs(s)) {
      need(link_number(s) < static_cast<int32_t>(p_.links.size()) &&
               kind_of(s) < static_cast<int32_t>(p_.kinds.size()),
           "rows of " + space_name(s));
    } else if (is_structure(s)) {
      need(s < kVertexStructure0 + 2 * p_.structures,
           "structure " + std::to_string((s - kVertexStructure0) / 2) + " of " +
               std::to_string(p_.structures));
    } else if (is_selected(s)) {
      need(feature_of(s) < kMostIndices,
           (is_distinct(s)
                ? "distinct values of int feature " + std::to_string(feature_of(s))
                : "rows where int feature " + std::to_string(feature_of(s)) + " is present"));
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

  void check_instruction(const Instruction& in) const {
    const InstructionTraits& traits = traits_of(in);
    need(traits.fused ? in.inputs.empty() : in.loads.empty() && in.stores.empty(),
         traits.fused ? "has inputs, a fused kernel has loads"
                      : "has loads or stores, which only a fused kernel has");
    traits.validate(*this, in);
  }

  struct Columns {
    int32_t buffer;
    int64_t begin, end;
  };
  static void add_written(const Instruction& in, std::vector<Columns>& written) {
    if (in.out.buffer >= 0) {
      written.push_back({in.out.buffer, in.out.column, int64_t{in.out.column} + in.out.width});
    }
    for (const MapStoreSpec& s : in.stores) {
      written.push_back({s.buffer, s.column, s.column + reach_of(in, s)});
    }
  }

  void check_live(int32_t id, int32_t body) {
    const Buffer& b = p_.buffers[id];
    if (b.role == Role::kArena) {
      need(b.first <= stage_ && stage_ <= b.last,
           "uses buffer " + std::to_string(id) + " in stage " + std::to_string(stage_) +
               ", it is live in [" + std::to_string(b.first) + ", " + std::to_string(b.last) + "]");
    } else if (b.role == Role::kScratch) {
      need(p_.stages[stage_].type != StageType::kGlobal,
           "scratch buffer " + std::to_string(id) + " in a global stage");
      const int64_t use = (static_cast<int64_t>(stage_) << 32) + body;
      need(scratch_[id] < 0 || scratch_[id] == use,
           "scratch buffer " + std::to_string(id) + " is used in stage " +
               std::to_string(scratch_[id] >> 32) + " and in stage " + std::to_string(stage_) +
               " (or two bodies of it)");
      scratch_[id] = use;
    }
  }

  // A sum of a loop adds terms of one task after the other, so its output may not be overwritten or
  // read yet, and its operands must outlive the chunks of the task.
  void check_sum_of_task(const Instruction& in) const {
    if (!traits_of(in).sparse_gradient) {
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
    const bool global = stage.type == StageType::kGlobal;
    std::vector<Columns> written;
    bool sums = false;
    for (int32_t id : body) {
      label_ = stage.label.empty() ? "stage " + std::to_string(stage_) : stage.label;
      need(id >= 0 && id < static_cast<int32_t>(p_.instructions.size()),
           "instruction " + std::to_string(id) + " of " + std::to_string(p_.instructions.size()));
      const Instruction& in = p_.instructions[id];
      if (!in.label.empty()) label_ = in.label;
      need(!used_[id], "is in two bodies");
      used_[id] = true;
      const bool sum = is_global(in);
      if (stage.type == StageType::kLoop) {
        need(sum || !sums, "comes after a sum over the rows of the task");
        sums |= sum;
        if (sum) check_sum_of_task(in);
      } else {
        need(sum == global,
             std::string(name_of(in.type)) +
                 (global ? " in a global stage" : " needs a global stage of its own, or a loop"));
      }
      const bool own =
          in.space == space || (is_vertex(space) && relation_of(in.space) != kNoRelation &&
                                in.space == related(space, relation_of(in.space)));
      need(own || (global && space < 0),
           "runs over " + space_name(in.space) + " in a stage over " + space_name(space));
      if (!sum) add_written(in, written);
      each_operand(in, [&](const Operand& o) {
        need(stage.type != StageType::kLoop || p_.buffers[o.buffer].role != Role::kGrad,
             "reads gradient " + std::to_string(p_.buffers[o.buffer].index) + " in a loop");
        check_live(o.buffer, number);
      });
      each_output(in, [&](int32_t b) { check_live(b, number); });
    }
    // Another chunk may not have written its rows yet. Parents of leaves are of other kinds than
    // leaves.
    const int32_t kind = kind_of(space);
    const bool leaves = kind >= 0 && p_.kinds[kind] % 2 == 0;
    for (int32_t id : body) {
      const Instruction& in = p_.instructions[id];
      if (is_global(in)) continue;
      each_operand(in, [&](const Operand& o) {
        const bool scratch = p_.buffers[o.buffer].role == Role::kScratch;
        bool same_stage = stage.type == StageType::kRows && space != kOneSpace;
        if (same_stage) {
          same_stage = false;
          const bool parents = o.array == Array::kNthParents || o.array == Array::kParents;
          const bool other_rows = leaves && parents;
          for (const Columns& w : written) {
            const bool meet = w.begin < int64_t{o.column} + o.width && o.column < w.end;
            same_stage |= w.buffer == o.buffer && meet && !other_rows;
          }
        }
        label_ = label_of(in);
        need(is_local(o) || (!scratch && !same_stage), "reads buffer " + std::to_string(o.buffer) +
                                                           " through " + name_of(o.array) +
                                                           " in the stage that writes it");
      });
    }
  }

  void check_stage(const Stage& stage) {
    label_ = stage.label.empty() ? "stage " + std::to_string(stage_) : stage.label;
    switch (stage.type) {
      case StageType::kRows: {
        check_space(stage.space);
        check_body(stage.body, stage.space, 0);
        return;
      }
      case StageType::kLoop:
        need(stage.bodies.size() == p_.kinds.size(),
             differ("bodies and kinds differ", static_cast<int64_t>(stage.bodies.size()),
                    static_cast<int64_t>(p_.kinds.size())));
        for (size_t k = 0; k < stage.bodies.size(); ++k) {
          const auto kind_space = static_cast<Space>(kVertexKind0 + 2 * k);
          check_body(stage.bodies[k], kind_space, static_cast<int32_t>(k));
        }
        return;
      case StageType::kGlobal:
        need(!stage.body.empty(), "0 instructions, a global stage has one or more");
        check_body(stage.body, -1, 0);
        check_terms(stage.body);
        return;
    }
  }

  // Several instructions are products that add to one gradient; the first may write everything that
  // the others add to.
  void check_terms(const std::vector<int32_t>& body) {
    const Instruction& lead = p_.instructions[body[0]];
    for (size_t i = 0; i < body.size() && body.size() > 1; ++i) {
      const Instruction& in = p_.instructions[body[i]];
      label_ = label_of(in);
      need(traits_of(lead).cut == Cut::kCells && in.type == lead.type,
           "follows another sum in a global stage, which only products may");
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

void validate_parameters(const Program& program, const std::vector<int64_t>& sizes) {
  SizeChecks(program, sizes).check();
}

}  // namespace cavs
