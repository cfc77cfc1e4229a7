#include "exec/analysis.h"

#include <algorithm>
#include <limits>

#include "exec/cost.h"
#include "exec/spaces.h"

namespace cavs {
namespace {

// Bytes of the values of a chunk if 48 rows are the minimum; leaves room for weights in L2.
constexpr size_t kChunkBytes = 512 << 10;

Cost cost_of(const Instruction& in, size_t element) {
  const auto cost = traits_of(in).cost;
  const double row = cost == nullptr ? copy_cost(in) : cost(in);
  return {kCallNs, row * (static_cast<double>(element) / 4)};
}

template <class F>
void each_buffer(const Instruction& in, F&& f) {
  each_operand(in, [&](const Operand& o) { f(o.buffer, false); });
  each_output(in, [&](int32_t buffer) { f(buffer, true); });
}

Body make_body(const Program& p, int32_t stage, Space space, const std::vector<int32_t>& all,
               size_t element, ChunkRows chunk) {
  Body body;
  body.stage = stage;
  body.space = space;
  const bool loop = p.stages[stage].type == StageType::kLoop;
  for (int32_t id : all) {
    (loop && is_global(p.instructions[id]) ? body.sums : body.instructions).push_back(id);
  }
  const std::vector<int32_t>& ids = body.instructions;
  std::vector<bool> seen(p.buffers.size(), false);
  size_t row_bytes = 1;
  bool products = false;
  for (size_t i = 0; i < ids.size(); ++i) {
    const Instruction& in = p.instructions[ids[i]];
    const int32_t relation = relation_of(in.space);
    const bool known =
        std::find(body.relations.begin(), body.relations.end(), relation) != body.relations.end();
    if (is_vertex(space) && relation != kNoRelation && !known) body.relations.push_back(relation);
    products |= traits_of(in).packed_weight;
    each_buffer(in, [&](int32_t id, bool) {
      const Buffer& b = p.buffers[id];
      if (b.role != Role::kArena && b.role != Role::kScratch) return;
      const auto position = static_cast<int32_t>(i);
      if (seen[id]) {
        for (ScratchUse& use : body.scratch) {
          if (use.buffer == id) use.last = position;
        }
        return;
      }
      seen[id] = true;
      row_bytes += b.width * element;
      if (b.role == Role::kScratch) body.scratch.push_back({id, position, position});
    });
  }
  for (ScratchUse& use : body.scratch) {
    if (std::find(p.outputs.begin(), p.outputs.end(), use.buffer) == p.outputs.end()) continue;
    use.last = static_cast<int32_t>(ids.size());  // read after the last instruction
    body.outputs.push_back(use.buffer);
  }
  const auto rows = static_cast<int32_t>(kChunkBytes * chunk.fewest / 48 / row_bytes);
  body.chunk_rows = std::clamp(rows / chunk.unit * chunk.unit, products ? chunk.fewest : chunk.unit,
                               2 * chunk.fewest);
  body.edge_limit = 2 * body.chunk_rows;
  return body;
}

// Rows and columns of a gradient that a sum over rows writes.
struct Window {
  int64_t row, row_end, column, column_end;
};
Window window_of(const Program& p, const Instruction& in) {
  constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  const Cut cut = traits_of(in).cut;
  const bool sum = cut == Cut::kCells || cut == Cut::kColumns;
  if (!sum || p.buffers[in.out.buffer].role != Role::kGrad) return {0, kAll, 0, kAll};
  const int64_t width = p.buffers[in.out.buffer].width;
  const int64_t row = in.out.column / width, column = in.out.column % width;
  const int64_t rows = std::max<int64_t>(width_of(in, 0, in.split), 1);
  const int64_t end = column + in.out.width;
  // A sum longer than a row continues in the next row: sums of matrices are flat.
  if (end > width) return {row, row + rows + (end - 1) / width, 0, width};
  return {row, row + rows, column, end};
}

Window window_of(const Program& p, const Stage& sum) {
  Window all = window_of(p, p.instructions[sum.body[0]]);
  for (size_t i = 1; i < sum.body.size(); ++i) {
    const Window one = window_of(p, p.instructions[sum.body[i]]);
    all.row = std::min(all.row, one.row);
    all.row_end = std::max(all.row_end, one.row_end);
    all.column = std::min(all.column, one.column);
    all.column_end = std::max(all.column_end, one.column_end);
  }
  return all;
}

// True if the sum of stage `b` may run concurrently with those of stages [first, b).
bool independent(const Program& p, int32_t first, int32_t b) {
  const std::vector<int32_t>& late = p.stages[b].body;
  const auto storage = [&](const Instruction& in) {  // output as a comparable number
    if (traits_of(in).sparse_gradient) return -1 - in.argument2;
    const Buffer& out = p.buffers[in.out.buffer];
    return out.role == Role::kGrad ? -1 - out.index : in.out.buffer;
  };
  const auto output = [&](const std::vector<int32_t>& sum) {
    return storage(p.instructions[sum[0]]);
  };
  for (int32_t a = first; a < b; ++a) {
    const std::vector<int32_t>& early = p.stages[a].body;
    if (output(early) == output(late)) {
      const Window x = window_of(p, p.stages[a]), y = window_of(p, p.stages[b]);
      if (x.row < y.row_end && y.row < x.row_end && x.column < y.column_end &&
          y.column < x.column_end) {
        return false;
      }
    }
    bool reads = false;
    const auto check = [&](const std::vector<int32_t>& reader, const std::vector<int32_t>& writer) {
      for (int32_t i : reader) {
        each_buffer(p.instructions[i], [&](int32_t id, bool out) {
          if (out) return;
          const Buffer& buffer = p.buffers[id];
          reads |= (buffer.role == Role::kGrad ? -1 - buffer.index : id) == output(writer);
        });
      }
    };
    check(late, early);
    check(early, late);
    if (reads) return false;
  }
  return true;
}

// Slab size of gradients too large to become final as a whole: few slabs, because each costs a pass
// over the right operand of the product.
constexpr int64_t kSlabBytes = 4 << 20;

void cut_gradients(const Program& p, Analysis& a, size_t element,
                   const std::vector<int64_t>& sizes) {
  for (int64_t size : sizes) a.slab.push_back(std::max<int64_t>(size, 1));
  a.result_width.assign(p.instructions.size(), 0);
  for (const Product& product : a.products) {
    if (product.terms.empty()) continue;
    const Instruction& in = p.instructions[product.terms[0]];
    const Buffer& out = p.buffers[in.out.buffer];
    if (out.role != Role::kGrad) continue;
    const int64_t size = sizes[out.index], width = out.width;
    int64_t reached = 0;
    for (const Product::Cell& c : product.cells) reached += c.size();
    if (reached != size) continue;
    const int64_t slabs = (size * static_cast<int64_t>(element) + kSlabBytes - 1) / kSlabBytes;
    a.result_width[product.terms[0]] = out.width;
    a.slab[out.index] = (size / width + slabs - 1) / slabs * width;
  }
}

// True if an instruction writes all of a gradient, so that it need not start from zeros. A sum that
// adds to zeros does.
bool overwrites(const Program& p, const Body& body, const Instruction& in, int64_t size) {
  const bool sum = p.stages[body.stage].type == StageType::kGlobal;
  const InstructionTraits& traits = traits_of(in);
  if ((in.accumulate && !sum) || traits.fused || traits.cut == Cut::kWhole) return false;
  if (traits.cut == Cut::kCells) return is_whole_product(p, in, size);
  return in.out.column == 0 && in.out.width == size;
}

// List the gradients that each instruction writes, and order gradients by completion: by the step
// of the last writer; within a step tables come first, then costly ones.
void order_gradients(const Program& p, Analysis& a, size_t parameters) {
  std::vector<std::pair<int32_t, double>> done(parameters, {-1, 0});
  a.gradient_stage.assign(parameters, -1);
  a.gradients_of_instruction.resize(p.instructions.size());
  for (const Body& body : a.bodies) {
    std::vector<int32_t>& of_body = a.gradients_of_body.emplace_back();
    std::vector<int32_t> ids = body.instructions;
    ids.insert(ids.end(), body.sums.begin(), body.sums.end());
    double together = 0;  // cost of products computed as one
    if (p.stages[body.stage].type == StageType::kGlobal) {
      for (int32_t id : ids) together += a.costs[id].row;
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      const int32_t id = ids[i];
      std::vector<int32_t>& written = a.gradients_of_instruction[id];
      const Instruction& in = p.instructions[id];
      const bool table = traits_of(in).sparse_gradient;
      if (table) written.push_back(in.argument2);
      each_buffer(in, [&](int32_t buffer, bool out) {
        const Buffer& b = p.buffers[buffer];
        if (out && b.role == Role::kGrad) written.push_back(b.index);
      });
      for (int32_t param : written) {
        if (i < body.instructions.size()) of_body.push_back(param);  // sums are separate items
        const double cost = std::max(together, a.costs[id].row);
        const double turn = table ? -std::numeric_limits<double>::infinity() : -cost;
        done[param] = std::max(done[param], {a.step_of_stage[body.stage], turn});
        a.gradient_stage[param] = std::max(a.gradient_stage[param], body.stage);
      }
    }
  }
  for (size_t i = 0; i < parameters; ++i) {
    if (done[i].first >= 0) a.gradient_order.push_back(static_cast<int32_t>(i));
  }
  std::stable_sort(a.gradient_order.begin(), a.gradient_order.end(),
                   [&](int32_t x, int32_t y) { return done[x] < done[y]; });
}

}  // namespace

GradientLayout lay_out_dense_gradients(const Analysis& a, size_t element,
                                       const std::vector<int64_t>& sizes) {
  const auto line = static_cast<int64_t>(64 / element);
  GradientLayout layout;
  layout.at.assign(sizes.size(), 0);
  for (int32_t i : a.gradient_order) {
    layout.at[i] = layout.elements;
    if (a.dense_gradient[i]) layout.elements += (sizes[i] + line - 1) / line * line + line;
  }
  return layout;
}

bool is_whole_product(const Program& p, const Instruction& in, int64_t size) {
  if (traits_of(in).cut != Cut::kCells || in.out.column != 0) return false;
  const int64_t k = width_of(in, 0, in.split);
  return p.buffers[in.out.buffer].width == in.out.width && k * in.out.width == size;
}

Analysis analyse(const Program& p, size_t element, const std::vector<int64_t>& sizes,
                 ChunkRows rows) {
  Analysis a;
  for (const Instruction& in : p.instructions) a.costs.push_back(cost_of(in, element));
  a.products.resize(p.instructions.size());
  const auto add_product = [&](const std::vector<int32_t>& terms) {
    if (traits_of(p.instructions[terms[0]]).cut == Cut::kCells) {
      a.products[terms[0]] = product_of(p, terms);
    }
  };
  for (const Stage& stage : p.stages) {
    if (stage.type == StageType::kGlobal) add_product(stage.body);
    for (const std::vector<int32_t>& body : stage.bodies) {
      for (int32_t id : body) add_product({id});
    }
  }
  a.bodies_of_stage.resize(p.stages.size());
  int32_t group = 0;  // first stage of the current step
  for (int32_t s = 0; s < static_cast<int32_t>(p.stages.size()); ++s) {
    const Stage& stage = p.stages[s];
    const bool joins = s > 0 && s != p.forward_stages && stage.type == StageType::kGlobal &&
                       p.stages[s - 1].type == StageType::kGlobal && independent(p, group, s);
    if (!joins) {
      group = s;
      ++a.steps;
    }
    a.step_of_stage.push_back(a.steps - 1);
    const auto add = [&](Space space, const std::vector<int32_t>& ids) {
      a.bodies_of_stage[s].push_back(ids.empty() ? -1 : static_cast<int32_t>(a.bodies.size()));
      if (!ids.empty()) a.bodies.push_back(make_body(p, s, space, ids, element, rows));
    };
    if (stage.type == StageType::kLoop) {
      for (size_t k = 0; k < stage.bodies.size(); ++k) {
        add(static_cast<Space>(kVertexKind0 + 2 * k), stage.bodies[k]);
      }
    } else {
      add(stage.type == StageType::kRows ? stage.space : -1, stage.body);
    }
  }

  for (size_t i = 0; i < p.buffers.size(); ++i) {
    const Buffer& b = p.buffers[i];
    Lifetime life{0, 0, 0};
    if (b.role == Role::kArena) {
      life.first = a.step_of_stage[b.first];
      life.last = a.step_of_stage[b.last];
    }
    a.lifetimes.push_back(life);
  }
  // Values that the caller reads live to the end.
  const auto keep = [&](int32_t id) { a.lifetimes[id].last = a.steps - 1; };
  if (p.loss >= 0) keep(p.loss);
  for (int32_t o : p.outputs) keep(o);

  a.dense_gradient.assign(sizes.size(), false);
  a.zero_gradient.assign(sizes.size(), false);
  for (const Buffer& b : p.buffers) {
    if (b.role == Role::kGrad) a.dense_gradient[b.index] = a.zero_gradient[b.index] = true;
  }
  std::vector<bool> touched(sizes.size(), false);
  a.overwrites.assign(p.instructions.size(), false);
  const auto touch = [&](int32_t param, int32_t id, bool whole) {
    if (touched[param]) return;
    touched[param] = true;
    if (whole) a.zero_gradient[param] = false;
    if (whole) a.overwrites[id] = true;
  };
  for (const Body& body : a.bodies) {
    std::vector<int32_t> ids = body.instructions;
    ids.insert(ids.end(), body.sums.begin(), body.sums.end());
    for (int32_t id : ids) {
      const Instruction& in = p.instructions[id];
      if (traits_of(in).sparse_gradient) touch(in.argument2, id, false);
      each_buffer(in, [&](int32_t buffer, bool out) {
        const Buffer& b = p.buffers[buffer];
        if (b.role != Role::kGrad) return;
        touch(b.index, id, out && overwrites(p, body, in, sizes[b.index]));
      });
    }
  }
  order_gradients(p, a, sizes.size());
  cut_gradients(p, a, element, sizes);
  return a;
}

}  // namespace cavs
