// Launches: every stage in order, every task of a loop, every instruction of a task.
#include <algorithm>
#include <limits>
#include <utility>

#include "cuda/executor/executor.h"
#include "exec/spaces.h"

namespace cavs::cuda {
namespace {

constexpr unsigned kSmallBlock = 64;

}  // namespace

// Rows of an instruction, given those of the body it stands in.
template <class T>
RowRange Executor<T>::rows_of(int32_t id, Space body, RowRange rows) const {
  if (!is_vertex(body) || !is_edge(program_->instructions[id].space)) return rows;
  const PooledVector<int32_t>& offsets = schedule_->edge_offsets;
  return {offsets[rows.begin], offsets[rows.end]};
}

// Sums into gradients whose operands are ready before a later loop run beside that loop: it seldom
// fills the device (the streaming of Cavs, section 6.5.4). What they read lives until their own
// stage, so nothing takes its place meanwhile. So do sums over the same rows that one kernel makes:
// at the first stage of such a sum where all that they read, and what they are added to, is there.
template <class T>
void Executor<T>::plan_sums() {
  const Program& p = *program_;
  const auto stages = static_cast<int32_t>(p.stages.size());
  std::vector<int32_t> written(p.buffers.size(), -1);  // last stage that writes a buffer
  std::vector<int32_t> of_parameter(parameters_->sizes().size(), -1);
  const std::vector<int32_t>& step = analysis_.step_of_stage;
  struct Columns {
    int32_t begin, end, stage;
  };
  std::vector<std::vector<Columns>> columns(of_parameter.size());  // of gradients, as written
  for (int32_t s = 0; s < stages; ++s) {
    start_.push_back(s);
    leader_.push_back(s);
    together_.emplace_back();
    std::vector<int32_t> ids = p.stages[s].body;
    for (const auto& body : p.stages[s].bodies) ids.insert(ids.end(), body.begin(), body.end());
    int32_t ready = -1, last = -1, overlapped = -1;
    bool sums = p.stages[s].kind == StageKind::kGlobal;
    for (int32_t id : ids) {
      const Instruction& in = p.instructions[id];
      for (const Operand& o : in.inputs) ready = std::max(ready, written[o.buffer]);
      const bool lookup = in.kind == InstructionKind::kLookupGrad;
      if (in.kind != InstructionKind::kMap) {
        const Buffer& out = p.buffers[in.out.buffer];
        sums &= lookup || out.role == Role::kGrad;
        const int32_t param = lookup ? in.argument2 : out.role == Role::kGrad ? out.index : -1;
        if (param >= 0) {
          if (of_parameter[param] != s)
            last = std::max(last, std::exchange(of_parameter[param], s));
          int32_t below = 0;  // rows of a product under its first
          for (int32_t i = 0; i < in.split; ++i) below += in.inputs[i].width;
          if (below > 0) below = (below - 1) * out.width;
          const Columns own = lookup
                                  ? Columns{0, std::numeric_limits<int32_t>::max(), s}
                                  : Columns{in.out.column, in.out.column + below + in.out.width, s};
          for (const Columns& c : columns[param]) {
            if (c.begin < own.end && own.begin < c.end) overlapped = std::max(overlapped, c.stage);
          }
          columns[param].push_back(own);
        }
        if (!lookup) written[in.out.buffer] = s;
      }
      for (const MapStoreSpec& store : in.stores) written[store.buffer] = s;
    }
    for (int32_t t = std::max(ready, last) + 1; sums && t < s; ++t) {
      if (p.stages[t].kind != StageKind::kLoop) continue;
      start_.back() = t;
      break;
    }
    if (!sums || start_.back() != s || p.instructions[ids[0]].kind != InstructionKind::kSumRows) {
      continue;
    }
    const int32_t after = std::max(ready, overlapped);
    int32_t t = after + 1;  // of a later step: within one, what runs beside is not waited for
    while (t < s && after >= 0 && step[t] == step[after]) ++t;
    const auto joins = [&](const std::vector<int32_t>& others) {
      return !others.empty() && others.size() < kMostSources &&
             p.instructions[others[0]].space == p.instructions[ids[0]].space;
    };
    while (t < s && !joins(together_[t])) ++t;
    leader_.back() = t;
    together_[t].push_back(ids[0]);
  }
}

// Whether a stage goes to lane 1: all that start beside a loop do. Sums of one step are
// independent: every other one does, unless others are made with it.
template <class T>
bool Executor<T>::beside(int32_t s) const {
  if (start_[s] != s) return true;
  const std::vector<int32_t>& step = analysis_.step_of_stage;
  const bool starts = s == 0 || step[s - 1] != step[s];
  const bool alone = leader_[s] == s && together_[s].size() < 2;
  return !starts && s % 2 == 1 && alone;
}

// A gradient leaves with the last stage that writes it, behind it on its lane. What earlier steps
// wrote comes before that, for steps are joined; but where a stage of the same step writes a part
// on the other lane, the gradient stays until the step has been joined.
template <class T>
void Executor<T>::plan_leaving() {
  const std::vector<int32_t>& last = analysis_.gradient_stage;
  const std::vector<int32_t>& step = analysis_.step_of_stage;
  const auto stages = static_cast<int32_t>(step.size());
  std::vector<bool> apart(last.size(), false);
  for (int32_t s = 0; s < stages; ++s) {
    for (int32_t id : program_->stages[s].body) {  // loops are steps of their own
      for (int32_t param : analysis_.gradients_of_instruction[id]) {
        const int32_t end = last[param];
        if (step[s] == step[end] && beside(s) != beside(end)) apart[param] = true;
      }
    }
  }
  done_after_.resize(stages);
  done_after_step_.resize(analysis_.steps);
  for (int32_t i : analysis_.gradient_order) {
    (apart[i] ? done_after_step_[step[last[i]]] : done_after_[last[i]]).push_back(i);
  }
}

template <class T>
void Executor<T>::walk() {
  const auto stages = static_cast<int32_t>(program_->stages.size());
  const std::vector<int32_t>& step = analysis_.step_of_stage;
  timed(0);
  for (int32_t s = 0; s < stages; ++s) {
    bool forked = false;
    for (int32_t later = s + 1; later < stages; ++later) {
      if (start_[later] != s) continue;
      if (!forked) device_->fork();
      forked = true;
      run_beside(later);
    }
    // What lane 1 reads may be overwritten after the stage, or the step, that it belongs to.
    const bool more = s + 1 < stages && step[s + 1] == step[s];
    const bool starts = s == 0 || step[s - 1] != step[s];
    if (starts && more) device_->fork();
    if (start_[s] == s) {
      if (beside(s)) {
        run_beside(s);
      } else {
        run_stage(s);
      }
    }
    if (!more && (start_[s] != s || !starts)) device_->join();
    if (!more) leave(done_after_step_[step[s]]);
    timed(s + 1);
  }
}

template <class T>
void Executor<T>::run_beside(int32_t stage) {
  device_->use_lane(1);
  run_stage(stage);
  device_->use_lane(0);
}

template <class T>
void Executor<T>::run_stage(int32_t s) {
  timeline_.on_lane(device_->lane(), program_->stages[s].label, [&] { run_bodies(s); });
  leave(done_after_[s]);
}

template <class T>
void Executor<T>::run_bodies(int32_t s) {
  const Stage& stage = program_->stages[s];
  const std::vector<int32_t>& bodies = analysis_.bodies_of_stage[s];
  switch (stage.kind) {
    case StageKind::kRows:
      if (bodies[0] >= 0) run_body(analysis_.bodies[bodies[0]], spaces_.rows(stage.space));
      break;
    case StageKind::kLoop:
      walk_loop(s);
      break;
    case StageKind::kGlobal: {
      if (leader_[s] != s) break;  // done there
      const auto rows = [&](int32_t id) { return spaces_.rows(program_->instructions[id].space); };
      if (!together_[s].empty()) {
        sum_rows(together_[s], rows(stage.body[0]));
      } else {
        for (int32_t id : stage.body) run_sum(id, -1, rows(id));
      }
    }
  }
}

// Gradients that are done by what the present lane has been given.
template <class T>
void Executor<T>::leave(const std::vector<int32_t>& params) {
  if (!mirror_.armed()) return;
  for (int32_t param : params) {
    const auto of = std::find_if(factors_.begin(), factors_.end(),
                                 [&](const auto& f) { return f->of.param == param; });
    if (of != factors_.end()) {
      mirror_.leave_factors(param, **of);
    } else if (analysis_.dense_gradient[param]) {
      mirror_.leave(param, grads_[param]);
    }
    for (size_t t = 0; t < tables_.size(); ++t) {
      const Table& table = tables_[t];
      if (table.param != param || table.dense) continue;
      mirror_.leave_rows(param, t, table_at_[t],
                         static_cast<int64_t>(table.slots.size()) * table.width);
    }
  }
}

// The i-th task that a loop comes to.
template <class T>
int32_t Executor<T>::task_number(int32_t stage, int32_t i) const {
  const auto n = static_cast<int32_t>(schedule_->tasks.size());
  return program_->stages[stage].reversed ? n - 1 - i : i;
}

template <class T>
void Executor<T>::walk_loop(int32_t stage) {
  const auto n = static_cast<int32_t>(schedule_->tasks.size());
  for (int32_t i = 0; i < n;) {
    if (const int32_t count = narrow_tasks(stage, i); count > 1) {
      run_persistent(stage, i, count);
      i += count;
    } else {
      run_task(stage, task_number(stage, i++));
    }
  }
}

template <class T>
void Executor<T>::run_task(int32_t stage, int32_t t) {
  const BatchTask& task = schedule_->tasks[t];
  const int32_t id = analysis_.bodies_of_stage[stage][spaces_.kinds[task.kind]];
  if (id < 0) return;
  const Body& body = analysis_.bodies[id];
  run_body(body, task.rows);
  for (int32_t sum : body.sums) {
    const RowRange rows = rows_of(sum, body.space, task.rows);
    if (rows.size() > 0) run_sum(sum, t, rows);
  }
}

template <class T>
void Executor<T>::run_body(const Body& body, RowRange rows) {
  if (rows.size() == 0) return;
  for (int32_t id : body.instructions) {
    const RowRange own = rows_of(id, body.space, rows);
    if (own.size() > 0) emit(id, own, rows.begin);
  }
}

template <class T>
void Executor<T>::emit(int32_t id, RowRange rows, int64_t first_row) {
  const Bound<T>& b = bound_.instructions[id];
  ++launches_;
  if (profiling_) ++calls_[id];
  if (b.kind == InstructionKind::kMap) {
    emit_map(id, rows, first_row);
    return;
  }
  const Library<T>& k = *library_;
  const Target out = target(id, first_row);
  if (b.kind == InstructionKind::kMatmul) {
    const std::vector<Rows<T>> sources = operands(id, 0, b.count, rows, first_row);
    k.matmul(sources.data(), static_cast<int>(sources.size()), rows.begin, rows.end, b.packed,
             static_cast<int>(b.n), out, b.accumulate);
    return;
  }
  const Rows<T> in = source(b.first, first_row);
  const int32_t* labels = arrays_.of_instruction(id);
  switch (b.kind) {
    case InstructionKind::kSegmentMax:
      k.segment_max(in, rows.begin, rows.end, out);
      return;
    case InstructionKind::kCrossEntropy:
      k.cross_entropy(in, labels, rows.begin, rows.end, out);
      return;
    case InstructionKind::kCrossEntropyGrad:
      k.cross_entropy_grad(in, b.count > 1 ? source(b.first + 1, first_row) : Rows<T>{}, labels,
                           rows.begin, rows.end, out);
      return;
    default:
      k.copy_rows(in, rows.begin, rows.end, out);
  }
}

// The kernel takes the pointers of row 0, in the order that cavs.codegen.cuda lists them; columns
// stand in its text.
template <class T>
void Executor<T>::emit_map(int32_t id, RowRange rows, int64_t first_row) {
  const Map& map = maps_[id];
  words_.clear();
  words_.push_back(static_cast<uint64_t>(int64_t{rows.begin}));
  words_.push_back(static_cast<uint64_t>(int64_t{rows.end}));
  add_map_words(id, first_row);
  arguments_.clear();
  for (const uint64_t& w : words_) arguments_.push_back({&w, sizeof(w)});
  // These kernels run in blocks of any number of warps: small ones reach more multiprocessors.
  const int64_t items = int64_t{rows.size()} * map.items;
  const int64_t processors = device_->multiprocessors();
  const unsigned threads = items < processors * kBlock ? kSmallBlock : kBlock;
  const auto blocks = std::clamp<int64_t>((items + threads - 1) / threads, 1, processors * 16);
  device_->launch_kernel(map.function, Grid{static_cast<unsigned>(blocks)}, arguments_, threads);
}

template <class T>
void Executor<T>::add_map_words(int32_t id, int64_t first_row) {
  const Bound<T>& b = bound_.instructions[id];
  const auto word = [&](const void* p) { words_.push_back(reinterpret_cast<uint64_t>(p)); };
  const auto row_zero = [this](const T* data, int64_t values_before, int32_t buffer) {
    return reinterpret_cast<const T*>(reinterpret_cast<uint64_t>(data) -
                                      static_cast<uint64_t>(values_before) * value_bytes(buffer));
  };
  const Instruction& in = program_->instructions[id];
  for (int32_t i = 0; i < b.count; ++i) {
    const size_t load = b.first + i;
    const Source<T>& s = bound_.loads[load].source;
    const Operand& o = in.loads[i].operand;
    const Role role = program_->buffers[o.buffer].role;
    const T* data = s.data;
    int64_t base = s.base;
    if (const Place& place = load_place_[load]; place.buffer >= 0) {
      data = scratch(place);
      base = scratch_base(place, first_row);
    }
    if (role != Role::kOnes && role != Role::kCount) data -= o.column;
    word(s.map == RowMap::kOne ? data : row_zero(data, base * s.stride, o.buffer));
    const auto [index, offsets] = arrays_.of_load(load);
    if (s.map == RowMap::kSegmentSum) word(offsets);
    const bool segments_of_rows = o.array == Array::kEdges;
    if (s.map == RowMap::kIndex || (s.map == RowMap::kSegmentSum && !segments_of_rows)) word(index);
  }
  for (int32_t i = 0; i < b.map.num_stores; ++i) {
    const MapStore<T>& s = bound_.stores[b.first_store + i];
    T* data = s.data;
    int64_t base = s.base;
    if (const Place& place = store_place_[b.first_store + i]; place.buffer >= 0) {
      data = scratch(place);
      base = scratch_base(place, first_row);
    }
    word(row_zero(data - in.stores[i].column, base * s.stride, in.stores[i].buffer));
  }
  if (maps_[id].random) {
    word(staging_.at<uint64_t>(draw_at_));
    word(arrays_.of_instruction(id));
  }
}

// A sum over all rows (task -1) or over those of a task.
template <class T>
void Executor<T>::run_sum(int32_t id, int32_t task, RowRange rows) {
  const Bound<T>& b = bound_.instructions[id];
  if (b.kind == InstructionKind::kSumRows) {
    sum_rows({id}, rows);
    return;
  }
  ++launches_;
  if (profiling_) ++calls_[id];
  if (b.kind == InstructionKind::kLookupGrad) {
    run_lookup(id, task);
    return;
  }
  if (lstm_of_instruction_[id] >= 0) {
    run_lstm(id);
    return;
  }
  if (const int32_t f = factors_of_instruction_[id]; f >= 0) {
    copy_factors(*factors_[f], id, rows);
    return;
  }
  bool more = b.accumulate;
  for (const RowRange& run : even_runs(id, rows)) {
    const std::vector<Rows<T>> left = operands(id, 0, b.split, run, rows.begin);
    const std::vector<Rows<T>> right = operands(id, b.split, b.count, run, rows.begin);
    library_->matmul_tn(left.data(), static_cast<int>(left.size()), right.data(),
                        static_cast<int>(right.size()), run.begin, run.end, b.out, b.stride, more);
    more = true;
  }
}

// Sums over the same rows.
template <class T>
void Executor<T>::sum_rows(const std::vector<int32_t>& ids, RowRange rows) {
  std::vector<Rows<T>> sources;
  std::vector<Sum<T>> sums;
  for (int32_t id : ids) {
    const Bound<T>& b = bound_.instructions[id];
    ++launches_;
    if (profiling_) ++calls_[id];
    sources.push_back(source(b.first, rows.begin));
    sums.push_back({b.out, sources.back().width, b.accumulate});
  }
  library_->sum_rows(sources.data(), sums.data(), static_cast<int>(ids.size()), rows.begin,
                     rows.end);
}

// The operands of one product, side by side, instead of the product.
template <class T>
void Executor<T>::copy_factors(DeviceFactors& f, int32_t id, RowRange rows) {
  if (rows.size() == 0) return;
  const Bound<T>& b = bound_.instructions[id];
  const auto at = std::find(f.of.instructions.begin(), f.of.instructions.end(), id);
  const int64_t first = f.of.first_row[at - f.of.instructions.begin()];
  T* left = f.left.as<T>() + first * f.of.k;
  T* right = f.right.as<T>() + first * f.of.n;
  for (int32_t i = 0; i < b.count; ++i) {
    const Rows<T> operand = source(b.first + i, rows.begin);
    T*& out = i < b.split ? left : right;
    library_->copy_rows(operand, rows.begin, rows.end,
                        Target{out, i < b.split ? f.of.k : f.of.n, rows.begin});
    out += operand.width;
  }
}

template <class T>
void Executor<T>::run_lookup(int32_t id, int32_t task) {
  for (size_t t = 0; t < tables_.size(); ++t) {
    const Table& table = tables_[t];
    for (const Lookup& lookup : table.lookups) {
      if (lookup.instruction != id) continue;
      for (const SlotRows& of : slot_rows_[id]) {
        if (of.task != task) continue;
        T* out = table.dense ? grads_[table.param] : table_at_[t];
        const bool looped = lookup.looped;
        const int32_t* slots = looped        ? staging_.at<int32_t>(of.at_slots)
                               : table.dense ? staging_.at<int32_t>(table_slots_[t])
                                             : nullptr;
        const size_t count = looped ? of.slots.size() : table.slots.size();
        library_->lookup_grad(source(bound_.instructions[id].first, 0),
                              staging_.at<int32_t>(of.at_offsets), staging_.at<int32_t>(of.at_rows),
                              slots, static_cast<int>(count), out, lookup.first && !table.dense);
      }
    }
  }
}

#define CAVS_INSTANTIATE(T)                                               \
  template void Executor<T>::plan_sums();                                 \
  template void Executor<T>::plan_leaving();                              \
  template void Executor<T>::walk();                                      \
  template RowRange Executor<T>::rows_of(int32_t, Space, RowRange) const; \
  template int32_t Executor<T>::task_number(int32_t, int32_t) const;      \
  template void Executor<T>::add_map_words(int32_t, int64_t);
CAVS_INSTANTIATE(float)
CAVS_INSTANTIATE(double)
#undef CAVS_INSTANTIATE

}  // namespace cavs::cuda
