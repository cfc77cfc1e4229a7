#include "exec/plan.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "exec/instruction.h"
#include "exec/spaces.h"
#include "kernels/kernels.h"

namespace cavs {
namespace {

// Below these times, handing work to other threads costs more than it saves.
constexpr double kSerialNs = 3000;   // a task
constexpr double kSplitNs = 2000;    // one instruction of a task of few rows
constexpr double kGlobalNs = 20000;  // a piece of a sum over all rows; at most one per thread
constexpr int32_t kRowsEach = 16;    // fewer rows per thread: split by columns of the weight
// Rows of narrow tasks are deferred until a product of them pays off, but at most so many rows and
// an eighth of all rows, so that deferred rows need little memory.
constexpr int32_t kMostDeferred = 64, kTurns = 8;

class Planner {
 public:
  Planner(const Program& program, const Analysis& analysis, const Schedule& schedule,
          const Spaces& spaces, const PlanOptions& options, Plan& plan)
      : p_(program), a_(analysis), s_(schedule), spaces_(spaces), o_(options), plan_(plan) {}

  // Estimated time of all work on one thread, without a plan.
  double cost_of_all() const {
    double total = 0;
    for (int32_t s = 0; s < static_cast<int32_t>(p_.stages.size()); ++s) {
      const Stage& stage = p_.stages[s];
      const std::vector<int32_t>& bodies = a_.bodies_of_stage[s];
      if (stage.type == StageType::kGlobal) total += global_cost(s);
      if (stage.type == StageType::kRows && bodies[0] >= 0) {
        total += body_cost(a_.bodies[bodies[0]], spaces_.rows(stage.space));
      }
      if (stage.type != StageType::kLoop) continue;
      for (const BatchTask& task : s_.tasks) {
        const int32_t body = bodies[spaces_.kinds[task.kind]];
        if (body >= 0) total += body_cost(a_.bodies[body], task.rows);
      }
    }
    return total;
  }

  void run() {
    deferred_.assign(p_.instructions.size(), 0);
    plan_.deferred_at.assign(p_.instructions.size(), -1);
    for (stage_ = 0; stage_ < static_cast<int32_t>(p_.stages.size()); ++stage_) {
      const Stage& stage = p_.stages[stage_];
      const std::vector<int32_t>& bodies = a_.bodies_of_stage[stage_];
      switch (stage.type) {
        case StageType::kRows:
          if (bodies[0] >= 0) add_rows(bodies[0], spaces_.rows(stage.space));
          flush();
          break;
        case StageType::kLoop:
          add_loop(stage, bodies);
          break;
        case StageType::kGlobal:
          add_globals();
          break;
      }
    }
  }

 private:
  static RowRange range(int32_t begin, int32_t end) { return {begin, end}; }
  RowRange rows_of(int32_t id, const Body& body, RowRange rows) const {
    const int32_t relation = relation_of(p_.instructions[id].space);
    if (!is_vertex(body.space) || relation == kNoRelation) return rows;
    return spaces_.related(rows, relation);
  }
  double cost(int32_t id, RowRange rows) const {
    return rows.size() == 0 ? 0 : a_.costs[id].fixed + a_.costs[id].row * rows.size();
  }

  double body_cost(const Body& body, RowRange rows) const {
    double total = 0;
    for (int32_t i : body.instructions) total += cost(i, rows_of(i, body, rows));
    for (int32_t i : body.sums) total += cost(i, rows_of(i, body, rows));
    return total;
  }

  // Tasks of one level do not depend on each other: their bodies run concurrently.
  void add_loop(const Stage& stage, const std::vector<int32_t>& bodies) {
    const auto n = static_cast<int32_t>(s_.tasks.size());
    const auto at = [&](int32_t i) { return stage.reversed ? n - 1 - i : i; };
    for (int32_t i = 0, end = 0; i < n; i = end) {
      const int32_t level = s_.tasks[at(i)].level;
      for (end = i; end < n && s_.tasks[at(end)].level == level; ++end) {
        const BatchTask& task = s_.tasks[at(end)];
        if (const int32_t body = bodies[spaces_.kinds[task.kind]]; body >= 0) {
          add_rows(body, task.rows);
        }
      }
      flush();
      for (int32_t j = i; j < end; ++j) {
        const BatchTask& task = s_.tasks[at(j)];
        const int32_t body = bodies[spaces_.kinds[task.kind]];
        if (body < 0) continue;
        for (int32_t sum : a_.bodies[body].sums) {
          add_sum(sum, at(j), rows_of(sum, a_.bodies[body], task.rows));
        }
      }
    }
    for (const int32_t body : bodies) {
      if (body < 0) continue;
      for (const int32_t sum : a_.bodies[body].sums) sum_deferred(sum);
    }
  }

  // Steps of the bodies of a level, one after the other, or sums; each of pieces that may run at
  // once. `alone`: not worth sharing.
  struct Step {
    int32_t first, count;
    double cost;
    bool alone;
  };

  void open(bool serial) {
    if (serial && !plan_.phases.empty() && plan_.phases.back().serial &&
        plan_.phases.back().stage == stage_) {
      return;
    }
    plan_.phases.push_back({static_cast<int32_t>(plan_.items.size()), 0, stage_, serial});
  }
  void put(const Item& item) {
    plan_.items.push_back(item);
    ++plan_.phases.back().count;
  }

  // Rows [begin, result) form the next chunk: at most `most` rows, and few edges or one row.
  int32_t chunk_end(const Body& body, int32_t begin, int32_t end, int32_t most) {
    int32_t stop = std::min(end, begin + most);
    for (const int32_t relation : body.relations) {
      const int32_t* const offsets = spaces_.offsets[relation];
      if (offsets[stop] - offsets[begin] <= body.edge_limit) continue;
      const int32_t* over = std::upper_bound(offsets + begin + 1, offsets + stop + 1,
                                             offsets[begin] + body.edge_limit);
      stop = std::max(begin + 1, static_cast<int32_t>(over - offsets) - 1);
    }
    for (const int32_t relation : body.relations) {
      const RowRange related = spaces_.related({begin, stop}, relation);
      plan_.edge_rows = std::max(plan_.edge_rows, related.size());
    }
    return stop;
  }
  // Add a step to the current body, or a piece to its last step.
  void step(double cost, bool alone) {
    steps_.push_back({static_cast<int32_t>(pieces_.size()), 0, cost, alone});
  }
  void piece(const Item& item) {
    pieces_.push_back(item);
    ++steps_.back().count;
  }
  void put_chunks(int32_t id, RowRange rows, int32_t most) {
    const Body& body = a_.bodies[id];
    for (int32_t r = rows.begin; r < rows.end;) {
      const int32_t stop = chunk_end(body, r, rows.end, most);
      piece(RunBody{id, {r, stop}});
      r = stop;
    }
  }

  // Add the steps of a body, one after the other.
  void add_rows(int32_t id, RowRange rows) {
    const Body& body = a_.bodies[id];
    if (rows.size() == 0 || body.instructions.empty()) return;
    double total = 0, largest = 0;
    for (int32_t i : body.instructions) {
      const double c = cost(i, rows_of(i, body, rows));
      total += c;
      if (traits_of(p_.instructions[i]).packed_weight) largest = std::max(largest, c);
    }
    firsts_.push_back(static_cast<int32_t>(steps_.size()));
    const int32_t most = o_.one_by_one ? 1 : body.chunk_rows;
    if (o_.threads == 1 || total < kSerialNs) {
      step(total, true);
      put_chunks(id, rows, most);
    } else if (rows.size() >= kRowsEach * o_.threads || largest < kSplitNs) {
      // Equal chunks, a multiple of the number of threads.
      int32_t chunks = (rows.size() + most - 1) / most;
      chunks = (chunks + o_.threads - 1) / o_.threads * o_.threads;
      step(total, false);
      put_chunks(id, rows, std::max(1, (rows.size() + chunks - 1) / chunks));
    } else {
      for (int32_t r = rows.begin; r < rows.end;) {
        const int32_t stop = chunk_end(body, r, rows.end, most);
        split(id, range(r, stop));
        r = stop;
      }
    }
  }

  // Few rows but large products: split each instruction into pieces, one instruction after the
  // other.
  void split(int32_t number, RowRange chunk) {
    const Body& body = a_.bodies[number];
    for (int32_t id : body.instructions) {
      const RowRange rows = rows_of(id, body, chunk);
      if (rows.size() == 0) continue;
      const Instruction& in = p_.instructions[id];
      const double c = cost(id, rows);
      const bool packed = traits_of(in).packed_weight;
      step(c, c < kSplitNs);
      if (c < kSplitNs) {
        piece(RunInstruction{id, rows, chunk.begin});
      } else if (rows.size() >= 2 * kRowsEach * o_.threads ||
                 (!packed && rows.size() >= 2 * o_.threads)) {
        for (int32_t t = 0; t < o_.threads; ++t) {
          const RowRange own{part(rows.begin, rows.end, t, o_.threads),
                             part(rows.begin, rows.end, t + 1, o_.threads)};
          piece(RunInstruction{id, own, chunk.begin});
        }
      } else if (packed) {
        const auto panels =
            static_cast<int32_t>((p_.weights[in.weight].n + o_.panel - 1) / o_.panel);
        const int32_t pieces = std::min(panels, o_.threads);
        for (int32_t t = 0; t < pieces; ++t) {
          const Range own{part(0, panels, t, pieces), part(0, panels, t + 1, pieces)};
          piece(RunPanels{id, rows, own, chunk.begin});
        }
      } else {
        steps_.back().alone = true;
        piece(RunInstruction{id, rows, chunk.begin});
      }
    }
    if (body.outputs.empty()) return;
    step(kSplitNs, true);
    piece(CopyOutputs{number, chunk});
  }

  // Emit the first steps of all bodies concurrently, then the second steps, and so on.
  void flush() {
    firsts_.push_back(static_cast<int32_t>(steps_.size()));
    for (int32_t j = 0;; ++j) {
      concurrent_.clear();
      double total = 0;
      bool serial = true;
      for (size_t b = 0; b + 1 < firsts_.size(); ++b) {
        if (firsts_[b] + j >= firsts_[b + 1]) continue;
        const Step& s = steps_[firsts_[b] + j];
        concurrent_.push_back(s);
        total += s.cost;
        serial &= s.alone;
      }
      if (concurrent_.empty()) break;
      serial &= o_.threads == 1 || concurrent_.size() == 1 || total < kSerialNs;
      open(serial);
      put_shares(concurrent_);
    }
    firsts_.clear();
    steps_.clear();
    pieces_.clear();
  }
  // Give every thread a share of each step; steps of one piece go to the threads in turn.
  void put_shares(const std::vector<Step>& steps) {
    for (int32_t t = 0; t < o_.threads; ++t) {
      int32_t singles = 0;
      for (const Step& s : steps) {
        int32_t begin = part(0, s.count, t, o_.threads), end = part(0, s.count, t + 1, o_.threads);
        if (s.count == 1) {
          begin = 0;
          end = singles++ % o_.threads == t;
        }
        for (int32_t i = begin; i < end; ++i) put(pieces_[s.first + i]);
      }
    }
  }
  static int32_t part(int64_t begin, int64_t end, int64_t i, int64_t of) {
    return static_cast<int32_t>(begin + (end - begin) * i / of);
  }

  // Add a sum over the rows of one task. Operands of a product may be overwritten by the next task,
  // so few rows of them are copied and multiplied together with those of other tasks.
  void add_sum(int32_t id, int32_t task, RowRange rows) {
    if (rows.size() == 0) return;
    const Instruction& in = p_.instructions[id];
    if (traits_of(in).cut == Cut::kCells) {
      const int32_t most = std::min(kMostDeferred, spaces_.rows(in.space).size() / kTurns);
      if (rows.size() * 2 <= most) {
        if (deferred_[id] + rows.size() > most) sum_deferred(id);
        defer_rows(id, rows, most);
        return;
      }
    }
    sum_now(id, rows, {SumExtent::Over::kTask, task});
  }
  void defer_rows(int32_t id, RowRange rows, int32_t most) {
    if (plan_.deferred_at[id] < 0) {
      constexpr int64_t kLine = 16;
      plan_.deferred_at[id] = plan_.deferred;
      const int64_t width = width_of(p_.instructions[id]);
      plan_.deferred += (width * most + kLine - 1) / kLine * kLine;
    }
    open(true);
    put(DeferRows{id, rows, deferred_[id]});
    deferred_[id] += rows.size();
  }
  void sum_deferred(int32_t id) {
    const int32_t rows = std::exchange(deferred_[id], 0);
    if (rows > 0) sum_now(id, {0, rows}, {SumExtent::Over::kDeferred, rows});
  }
  void sum_now(int32_t id, RowRange rows, SumExtent extent) {
    const double c = cost(id, rows);
    const bool serial = o_.threads == 1 || c < kSerialNs;
    open(serial);
    step(c, false);
    add_pieces(id, serial ? 0 : c, extent);
    put_sums();
  }
  void put_sums() {
    put_shares(steps_);
    steps_.clear();
    pieces_.clear();
  }
  int32_t pieces_of(double cost) const {
    return static_cast<int32_t>(std::clamp<double>(cost / kGlobalNs, 1, o_.threads));
  }

  // Add this stage and those that may run concurrently with it.
  void add_globals() {
    const int32_t first = stage_;
    int32_t last = first;
    const auto stages = static_cast<int32_t>(p_.stages.size());
    while (last + 1 < stages && a_.step_of_stage[last + 1] == a_.step_of_stage[first]) ++last;
    double total = 0;
    for (int32_t s = first; s <= last; ++s) total += global_cost(s);
    open(o_.threads == 1 || total < kSerialNs);
    // Rows of tables first: they take longest to exchange. Then costly sums, so that no long piece
    // is left for the end.
    order_.clear();
    for (int32_t s = first; s <= last; ++s) order_.push_back(s);
    std::stable_sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
      return std::pair(!is_lookup(a), -global_cost(a)) < std::pair(!is_lookup(b), -global_cost(b));
    });
    for (int32_t s : order_) {
      step(global_cost(s), false);
      add_pieces(p_.stages[s].body[0], global_cost(s), {});
    }
    put_sums();
    stage_ = last;
  }
  bool is_lookup(int32_t stage) const {
    return traits_of(p_.instructions[p_.stages[stage].body[0]]).sparse_gradient;
  }
  double global_cost(int32_t stage) const {
    double sum = 0;
    for (int32_t id : p_.stages[stage].body) {
      sum += a_.costs[id].fixed + cost(id, spaces_.rows(p_.instructions[id].space));
    }
    return sum;
  }
  // Add the pieces of a sum of this cost to the last step.
  void add_pieces(int32_t id, double cost, SumExtent extent) {
    const Instruction& in = p_.instructions[id];
    const Cut cut = traits_of(in).cut;
    const int32_t pieces = pieces_of(cost);
    if (cut == Cut::kCells) {
      add_cells(id, cost, extent);
    } else if (cut == Cut::kColumns) {
      constexpr int32_t kLine = 16;  // columns
      const int32_t lines = (in.out.width + kLine - 1) / kLine;
      const int32_t wide = std::min(lines, pieces);
      for (int32_t j = 0; j < wide; ++j) {
        const Range columns{kLine * part(0, lines, j, wide),
                            std::min(in.out.width, kLine * part(0, lines, j + 1, wide))};
        piece(SumColumns{id, columns, extent});
      }
    } else {
      for (int32_t j = 0; j < pieces; ++j) piece(SumShare{id, {j, pieces}, extent});
    }
  }

  // One cell per thread if cells take equally long, else each cell in pieces by its own cost. Slab
  // by slab, if other threads wait for slabs.
  void add_cells(int32_t id, double cost, SumExtent extent) {
    const Product& product = a_.products[id];
    const int32_t k = product.rows;
    join_cells(p_, product, spaces_, cells_);
    double total = 0, most = 0;
    for (const Product::Cell& cell : cells_) {
      const double all = product_work(p_, product, cell, spaces_).all;
      total += all;
      most = std::max(most, all);
    }
    const auto cells = static_cast<int32_t>(cells_.size());
    const bool even = cells > 1 && cells % pieces_of(cost) == 0 && most * cells < 1.05 * total;
    const auto first = static_cast<int32_t>(plan_.cells.size());
    plan_.cells.insert(plan_.cells.end(), cells_.begin(), cells_.end());
    const bool all = extent.over == SumExtent::Over::kAll;
    const int32_t slab = o_.slabs && all ? slab_rows(p_.instructions[id], id, k) : k;
    for (int32_t begin = 0; begin < k; begin += slab) {
      for (int32_t i = 0; i < cells; ++i) {
        const Product::Cell& cell = cells_[i];
        const int32_t from = std::max(begin, cell.row);
        const int32_t to = std::min({k, begin + slab, cell.row_end});
        if (from >= to) continue;
        const double all = product_work(p_, product, cell, spaces_).all;
        const int32_t pieces = even ? 1 : pieces_of(total > 0 ? cost * all / total : 0);
        add_rows_of_cell({id, {from, to}, {}, extent, first + i}, pieces);
      }
    }
  }
  // Add the rows of `item` and all columns of its cell.
  void add_rows_of_cell(SumCell item, int32_t pieces) {
    const Product::Cell cell = plan_.cells[item.cell];
    const auto [begin, end] = item.rows;
    const int32_t panels = (cell.columns() + o_.panel - 1) / o_.panel;
    const auto [high, wide] = grid(cell.rows(), panels, cell.columns(), pieces);
    const auto column = [&, wide = wide](int32_t j) {
      return cell.column + std::min(cell.columns(), o_.panel * part(0, panels, j, wide));
    };
    for (int32_t i = 0; i < high; ++i) {
      for (int32_t j = 0; j < wide; ++j) {
        item.rows = {part(begin, end, i, high), part(begin, end, i + 1, high)};
        item.columns = {column(j), column(j + 1)};
        piece(item);
      }
    }
  }

  // Number of cuts of rows and of panels of a result [k, n], for about so many pieces, that gives
  // the busiest thread the least work; if equal, prefer cuts of panels.
  std::pair<int32_t, int32_t> grid(int32_t k, int32_t panels, int32_t n, int32_t pieces) const {
    const bool narrow = n <= kNarrowResult;
    const int32_t fewest = narrow ? o_.panel : 32;  // rows per piece
    std::pair<int32_t, int32_t> best{1, 1};
    double least = std::numeric_limits<double>::infinity();
    for (int32_t wide = narrow ? 1 : std::min(panels, pieces); wide >= 1; --wide) {
      const int32_t high = std::clamp((pieces + wide - 1) / wide, 1, (k + fewest - 1) / fewest);
      double most = 0;
      for (int32_t t = 0; t < o_.threads; ++t) {
        double share = 0;
        for (int32_t i = part(0, high * wide, t, o_.threads);
             i < part(0, high * wide, t + 1, o_.threads); ++i) {
          const int32_t begin = o_.panel * part(0, panels, i % wide, wide);
          const int32_t end = std::min(n, o_.panel * part(0, panels, i % wide + 1, wide));
          share += static_cast<double>(end - begin) / high;
        }
        most = std::max(most, share);
      }
      if (most < least * 0.97) {
        least = most;
        best = {high, wide};
      }
    }
    return best;
  }

  // Number of rows of a product's result, out of `k`, that form a slab of a gradient.
  int32_t slab_rows(const Instruction& in, int32_t id, int32_t k) const {
    const int32_t width = a_.result_width[id];
    if (width == 0) return k;
    return static_cast<int32_t>(a_.slab[p_.buffers[in.out.buffer].index] / width);
  }

  const Program& p_;
  const Analysis& a_;
  const Schedule& s_;
  const Spaces& spaces_;
  const PlanOptions o_;
  Plan& plan_;
  std::vector<Item> pieces_;
  std::vector<Step> steps_, concurrent_;
  std::vector<int32_t> firsts_;  // steps of the bodies
  std::vector<int32_t> order_;
  std::vector<int32_t> deferred_;     // number of deferred rows of each product
  std::vector<Product::Cell> cells_;  // cells of the current product
  int32_t stage_ = 0;
};

}  // namespace

void Plan::clear() {
  items.clear();
  phases.clear();
  cells.clear();
  edge_rows = 0;
  deferred = 0;
}

double plan_cost(const Program& program, const Analysis& analysis, const Schedule& schedule,
                 const Spaces& spaces) {
  Plan none;
  return Planner(program, analysis, schedule, spaces, {}, none).cost_of_all();
}

void make_plan(const Program& program, const Analysis& analysis, const Schedule& schedule,
               const Spaces& spaces, const PlanOptions& options, Plan& plan) {
  plan.clear();
  Planner(program, analysis, schedule, spaces, options, plan).run();
}

}  // namespace cavs
