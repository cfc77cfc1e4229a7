#include "exec/executor.h"

#include <algorithm>
#include <stdexcept>
#include <thread>
#include <tuple>

#include "base/lap.h"
#include "base/thread_pool.h"
#include "exec/host_io.h"
#include "exec/spaces.h"
#include "exec/validate.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cavs {
namespace {

constexpr double kParallelNs = 30000;      // a shorter run stays on one thread
constexpr size_t kSmallArena = 256 << 10;  // fits the cache without packing
constexpr int64_t kPieceElements = 1 << 15;
// Gradients and parameters that fit the caches move between the caches of two threads in every
// step: below this time per element a step is slower on two threads.
constexpr double kTravelNs = 4;
constexpr int64_t kCachedElements = 1 << 20;
constexpr int32_t kWaitSpins = 256;  // some microseconds

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}
double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class T>
std::vector<int64_t> sizes_of(const Program& program, const std::vector<Parameter<T>>& parameters) {
  std::vector<int64_t> sizes;
  for (const Parameter<T>& p : parameters) sizes.push_back(p.size);
  validate(program);
  validate_parameters(program, sizes);
  for (const Instruction& in : program.instructions) {
    if (traits_of(in).cut == Cut::kWhole) {
      throw std::invalid_argument("[" + in.label + "] runs on devices only");
    }
  }
  return sizes;
}

}  // namespace

template <class T>
void Executor<T>::Counters::reset(size_t n) {
  if (n > size) {
    data = std::make_unique<Counter[]>(n + n / 2);
    size = n + n / 2;
    return;
  }
  for (size_t i = 0; i < n; ++i) data[i].store(0, std::memory_order_relaxed);
}

template <class T>
Executor<T>::Executor(std::shared_ptr<const Program> program, std::vector<Parameter<T>> parameters,
                      Products products)
    : program_(std::move(program)),
      kernels_(kernels<T>(products)),
      analysis_(analyse(*program_, sizeof(T), sizes_of(*program_, parameters), kernels_.rows)),
      index_features_(*program_, sizes_of(*program_, parameters)),
      progress_(analysis_, sizes_of(*program_, parameters)) {
  const Program& p = *program_;
  context_.program = program_.get();
  context_.analysis = &analysis_;
  context_.kernels = &kernels_;
  context_.spaces = &spaces_;
  context_.bound = &bound_;
  context_.plan = &plan_;
  context_.patches = &patches_;
  context_.scratch_offsets.assign(p.buffers.size(), 0);
  context_.shared_at.assign(p.instructions.size(), 0);
  context_.sizes = sizes_of(p, parameters);
  for (const Parameter<T>& q : parameters) context_.params.push_back(q.data);

  const int64_t elements = lay_out_dense_gradients(analysis_, sizeof(T), context_.sizes).elements;
  small_gradients_ = elements <= kCachedElements ? elements : 0;
  gradient_elements_ = elements;
  Memory gradients;
  gradients.reserve(elements * sizeof(T));
  set_gradient_block(gradients.share<T>());

  weights_of_.resize(parameters.size());
  packed_at_ = locate_weights(p.weights, kernels_.panel, kernels_.depth);
  for (size_t i = 0; i < p.weights.size(); ++i) {
    const Weight& w = p.weights[i];
    Memory& memory = context_.packed.emplace_back();
    if (!packs(i)) continue;
    const size_t size = kernels_.packed_size(w.k, w.n);
    memory.reserve(size * sizeof(T));
    std::fill_n(memory.as<T>(), size, T(0));
    for (const WeightPiece& q : w.pieces) {
      weights_of_[q.param].push_back(static_cast<int32_t>(i));
    }
  }
  stale_.assign(p.weights.size(), true);
  for (const PackedAt& at : packed_at_) {
    const T* whole = context_.packed[at.weight].template as<T>();
    const int64_t depth = kernels_.depth;
    const int64_t rows = (p.weights[at.weight].k + depth - 1) / depth * depth;
    const int64_t before = at.column / kernels_.panel * rows + at.row;
    context_.packed_data.push_back(whole + kernels_.packed_size(before, kernels_.panel));
  }

  int32_t widest = 1;
  for (const Buffer& b : p.buffers) {
    if (b.role == Role::kOnes) widest = std::max(widest, b.width);
  }
  ones_.reserve(widest * sizeof(T));
  std::fill_n(ones_.as<T>(), widest, T(1));
  int32_t most = 1;
  for (const Product& product : analysis_.products) {
    for (const Product::Cell& cell : product.cells) most = std::max(most, cell.column_end);
  }
  zeros_.reserve(most * sizeof(T));
  std::fill_n(zeros_.as<T>(), most, T(0));
  context_.zeros = zeros_.as<T>();
  counts_.reserve((index_features_.num_features() - kFewestCount) * sizeof(T));
  for (const Body& body : analysis_.bodies) {
    for (const int32_t buffer : body.outputs) {
      context_.copied_outputs.push_back(
          {buffer, p.buffers[buffer].width, body.stage, nullptr, nullptr});
    }
  }
  context_.tables = make_tables(p, analysis_.dense_gradient, context_.sizes);
  bind_shapes(p, analysis_, bound_, patches_);
  for (size_t i = 0; i < p.instructions.size(); ++i) {
    const Instruction& in = p.instructions[i];
    if (!traits_of(in).packed_weight) continue;
    bound_.instructions[i].packed_k = p.weights[packed_at_[in.weight].weight].k;
  }
  // In a stage over edges, an edge row is a row of the chunk itself.
  for (const Body& body : analysis_.bodies) {
    for (int32_t id : body.instructions) {
      Bound<T>& b = bound_.instructions[id];
      if (is_vertex(body.space)) continue;
      b.relation = kNoRelation;
      for (int32_t i = b.first_patch; i < b.end_patch; ++i) patches_[i].relation = kNoRelation;
    }
  }
  context_.kernel_elements = kernel_scratch(bound_, analysis_, kernels_);
  stage_seconds_.assign(p.stages.size(), 0);
  context_.factors_of_instruction.assign(p.instructions.size(), -1);
}

template <class T>
std::shared_ptr<T> Executor<T>::set_gradient_block(const std::shared_ptr<T>& memory) {
  const std::lock_guard lock(mutex_);
  return place_gradients(memory);
}

template <class T>
std::shared_ptr<T> Executor<T>::place_gradients(const std::shared_ptr<T>& memory) {
  const auto [at, elements] = lay_out_dense_gradients(analysis_, sizeof(T), context_.sizes);
  std::vector<T*> grads;
  for (size_t i = 0; i < at.size(); ++i) {
    grads.push_back(analysis_.dense_gradient[i] ? memory.get() + at[i] : nullptr);
  }
  std::fill_n(memory.get(), elements, T(0));
  const std::lock_guard views(views_);
  context_.grads = std::move(grads);
  return std::exchange(gradient_block_, memory);
}

// Bind what depends on the shape of the batch and on presence of features; cached while the same
// schedule is used.
template <class T>
void Executor<T>::bind_structure(const std::shared_ptr<const Schedule>& schedule) {
  const int32_t threads = serial_ ? 1 : thread_pool().num_threads();
  const SelectedRows& selected = index_features_.selected();
  if (schedule == schedule_ && planned_threads_ == threads && selected == spaces_.selected) {
    return;
  }
  schedule_ = nullptr;
  ran_ = false;
  resolve_spaces(*program_, *schedule, selected, spaces_);
  cost_ = plan_cost(*program_, analysis_, *schedule, spaces_);
  alone_ = threads == 1 || cost_ < kTravelNs * static_cast<double>(small_gradients_);
  const int32_t shared_by = alone_ || cost_ < kParallelNs ? 1 : threads;
  const PlanOptions options{shared_by, kernels_.panel, serial_, progress_.watched()};
  make_plan(*program_, analysis_, *schedule, spaces_, options, plan_);
  reads_ = packed_by_plan(*program_, analysis_, packed_at_, plan_);
  lay_out();
  lay_out_scratch();
  progress_.count(plan_);
  planned_threads_ = threads;
  schedule_ = schedule;
  context_.schedule = schedule_.get();
}

template <class T>
void Executor<T>::lay_out() {
  std::vector<Lifetime>& lives = analysis_.lifetimes;
  size_t total = 0;
  for (size_t i = 0; i < lives.size(); ++i) {
    const Buffer& b = program_->buffers[i];
    if (b.role != Role::kArena) continue;
    lives[i].bytes = sizeof(T) * b.width * spaces_.rows_of(b).size();
    total += lives[i].bytes;
  }
  arena_needed_ = total <= kSmallArena ? assign_disjoint_offsets(lives) : pack_lifetimes(lives);
  const size_t deferred = sizeof(T) * plan_.deferred;
  peak_ = peak_live(lives, analysis_.steps) + deferred;
  context_.deferred.reserve(deferred);
}

// Reserve scratch for the largest chunk of each body. Every thread has scratch for one body; bodies
// of one stage that all threads work on run concurrently.
template <class T>
void Executor<T>::lay_out_scratch() {
  if (plan_.edge_rows <= scratch_edges_) return;
  const int32_t edge_rows = plan_.edge_rows;
  scratch_edges_ = -1;  // if allocation fails, everything is laid out again
  size_t most = 0, most_together = 0, together = 0;
  int32_t stage = -1;
  for (const Body& body : analysis_.bodies) {
    std::vector<Lifetime> lives;
    for (const ScratchUse& use : body.scratch) {
      const Buffer& b = program_->buffers[use.buffer];
      const bool related = relation_of(b.space) != kNoRelation && is_vertex(body.space);
      const size_t rows = related ? std::max(edge_rows, body.edge_limit) : body.chunk_rows;
      lives.push_back({use.first, use.last, sizeof(T) * b.width * rows});
    }
    const size_t bytes = pack_lifetimes(lives);
    for (size_t i = 0; i < lives.size(); ++i) {
      context_.scratch_offsets[body.scratch[i].buffer] = lives[i].offset;
    }
    if (body.stage != stage) together = 0;
    stage = body.stage;
    for (int32_t id : body.instructions) context_.shared_at[id] = together;
    together += bytes;
    most = std::max(most, bytes);
    most_together = std::max(most_together, together);
  }
  context_.scratch_bytes = most;
  context_.shared_scratch.reserve(most_together);
  scratch_edges_ = edge_rows;
}

template <class T>
void Executor<T>::bind(const Inputs<T>& inputs, Part part) {
  if (inputs.schedule == nullptr) throw std::invalid_argument("no schedule");
  ran_ = false;
  std::vector<int64_t>& rows = feature_rows_;
  rows.clear();
  for (const FloatFeature<T>& f : inputs.float_features) rows.push_back(f.rows);
  for (const Buffer& b : program_->buffers) {
    if (b.role == Role::kFeature) rows.resize(std::max<size_t>(rows.size(), b.index + 1), 0);
  }
  index_features_.bind(*inputs.schedule, inputs.int_features, rows);
  bind_structure(inputs.schedule);
  if (part == Part::kBackward && arena_->bytes() < arena_needed_) {
    throw std::logic_error("the memory of a forward run is too small for its backward run");
  }
  arena_->reserve(arena_needed_);
  bind_outputs(part);
  fill_counts(inputs, index_features_, counts_.as<T>() - kFewestCount);
  Addresses<T> at;
  at.arena = arena_->as<T>();
  at.lifetimes = &analysis_.lifetimes;
  at.params = &context_.params;
  at.grads = &context_.grads;
  at.features = &inputs.float_features;
  at.ones = ones_.as<T>();
  at.counts = counts_.as<T>() - kFewestCount;
  at.packed = &context_.packed_data;
  at.schedule = schedule_.get();
  at.spaces = &spaces_;
  at.index_features = &index_features_;
  at.seed = inputs.seed;
  at.step = inputs.step;
  bind_addresses(*program_, at, bound_);
  if (part != Part::kForward) {
    const std::lock_guard views(views_);
    for (Table& table : context_.tables) bind_table(table, bound_, spaces_);
    for (Factors& f : context_.factors) bind_factors(f, bound_, spaces_);
  }
}

// Before the first stage, pack weights that changed and that the plan reads; before the first of
// backward, zero gradients.
template <class T>
void Executor<T>::plan_prologue(Part part) {
  prologue_.clear();
  for (size_t i = 0; i < stale_.size(); ++i) {
    if (!stale_[i] || !reads_[i]) continue;
    const Weight& w = program_->weights[i];
    const auto panels = static_cast<int32_t>((w.n + kernels_.panel - 1) / kernels_.panel);
    const auto each = static_cast<int32_t>(
        std::clamp<int64_t>(kPieceElements / (w.k * kernels_.panel), 1, panels));
    for (int32_t a = 0; a < panels; a += each) {
      prologue_.push_back(PackWeight{static_cast<int32_t>(i), {a, std::min(panels, a + each)}});
    }
  }
  // In the order of parameters, as they are updated: a thread packs what it has just written.
  const auto key = [&](const Item& item) {
    const auto& [weight, range] = std::get<PackWeight>(item);
    const Weight& w = program_->weights[weight];
    return std::tuple(w.pieces.empty() ? 0 : w.pieces[0].param, weight, range.begin);
  };
  std::sort(prologue_.begin(), prologue_.end(),
            [&](const Item& a, const Item& b) { return key(a) < key(b); });
  for (size_t i = 0; i < context_.grads.size() && part != Part::kForward; ++i) {
    if (!analysis_.zero_gradient[i]) continue;
    const auto pieces = static_cast<int32_t>(context_.sizes[i] / kPieceElements + 1);
    for (int32_t a = 0; a < pieces; ++a) {
      prologue_.push_back(ZeroGradient{static_cast<int32_t>(i), {a, pieces}});
    }
  }
}

template <class T>
void Executor<T>::wait(const Counter& done, int32_t units) const {
  int32_t spins = 0;
  while (done.load(std::memory_order_acquire) < units && !broken_.load(std::memory_order_relaxed)) {
    // The running thread may have lost its core to another process.
    if (++spins < kWaitSpins) {
      pause();
    } else {
      std::this_thread::yield();
    }
  }
}

// Every thread walks all phases. In each it takes its own share first, so that its cache finds the
// same panels of weights from task to task, then the rest of the other shares. A late thread finds
// no work and catches up, so a slow thread delays the others by at most one item. If a thread
// throws, the others stop where they would wait for it.
template <class T>
void Executor<T>::walk(int32_t thread, int32_t threads) {
  try {
    walk_all(thread, threads);
  } catch (...) {
    broken_.store(true, std::memory_order_relaxed);
    throw;
  }
}

template <class T>
void Executor<T>::walk_all(int32_t thread, int32_t threads) {
  Worker<T>& worker = *workers_[thread];
  worker.refresh();
  const bool timed = context_.profiling && thread == 0;
  double start = timed ? now() : 0;
  const auto lap = [&](double& seconds) {
    if (!timed) return;
    const double t = now();
    seconds += t - start;
    start = t;
  };
  Counter* counters = counters_.data.get();
  const auto work = [&](const Item* items, int32_t count, bool serial) {
    const int32_t units = serial ? 1 : count;
    Counter& done = counters[0];
    for (int32_t i = 0; i < threads; ++i) {
      const int64_t share = (thread + i) % threads;
      const auto begin = static_cast<int32_t>(units * share / threads);
      const auto size = static_cast<int32_t>(units * (share + 1) / threads) - begin;
      Counter& next = counters[1 + share];
      int32_t taken;
      while (next.load(std::memory_order_relaxed) < size &&
             (taken = next.fetch_add(1, std::memory_order_relaxed)) < size) {
        const int32_t first = begin + taken, end = serial ? count : first + 1;
        for (int32_t j = first; j < end; ++j) {
          if (broken_.load(std::memory_order_relaxed)) return false;
          worker.run(items[j]);
          progress_.finished(items[j]);
        }
        done.fetch_add(1, std::memory_order_release);
      }
    }
    wait(done, units);
    counters += threads + 1;
    return !broken_.load(std::memory_order_relaxed);
  };
  if (!prologue_.empty()) {
    if (!work(prologue_.data(), static_cast<int32_t>(prologue_.size()), false)) return;
    lap(pack_seconds_);
  }
  for (size_t i = phases_.first; i < phases_.second; ++i) {
    const Phase& s = plan_.phases[i];
    if (!work(plan_.items.data() + s.first, s.count, s.serial)) return;
    lap(stage_seconds_[s.stage]);
  }
}

template <class T>
double Executor<T>::execute(Part part) {
  phases_ = phases_of(part);
  bool shared = prologue_.size() > 4 && !alone_;
  for (size_t i = phases_.first; i < phases_.second; ++i) shared |= !plan_.phases[i].serial;
  const int32_t threads = shared && !serial_ ? thread_pool().num_threads() : 1;
  while (static_cast<int32_t>(workers_.size()) < threads) {
    workers_.push_back(std::make_unique<Worker<T>>(context_));
  }
  counters_.reset((plan_.phases.size() + 1) * (threads + 1));
  broken_ = false;
  if (abandoned_) broken_ = true;
  if (threads == 1) {
    walk(0, 1);
  } else {  // the pool may have shrunk
    thread_pool().parallel_up_to(threads, [&](int32_t thread, int32_t of) { walk(thread, of); });
  }
  if (abandoned_) throw Abandoned();
  if (context_.profiling && part != Part::kForward) ++runs_;
  for (size_t i = 0; i < stale_.size(); ++i) {
    if (reads_[i]) stale_[i] = false;
  }
  ran_ = true;
  if (program_->loss < 0) return 0;
  return arena_->as<T>()[analysis_.lifetimes[program_->loss].offset / sizeof(T)];
}

template <class T>
void Executor<T>::abandon() {
  abandoned_ = true;
  broken_ = true;  // after it, so that execute sees one of them
}

template <class T>
double Executor<T>::run(const Inputs<T>& inputs) {
  const std::lock_guard lock(mutex_);
  arena_ = own_arena_;
  return run_locked(inputs);
}

template <class T>
StepResult Executor<T>::step(const Inputs<T>& inputs, const Update<T>& update) {
  const std::lock_guard lock(mutex_);
  check_update(update, context_.sizes.size());
  arena_ = own_arena_;
  const double loss = run_locked(inputs);
  const Lap lap(context_.profiling ? &update_seconds_ : nullptr);
  return {loss, apply_gradients(update, loss)};
}

template <class T>
double Executor<T>::run_locked(const Inputs<T>& inputs, Part part) {
  abandoned_ = false;
  try {
    bind(inputs, part);
    plan_prologue(part);
    progress_.begin(prologue_);
    return execute(part);
  } catch (const Abandoned&) {
    progress_.fail();
    throw;
  } catch (...) {
    progress_.fail();
    scratch_edges_ = -1;  // a failed allocation is not retried with the same size
    context_.scratch_bytes = 0;
    planned_threads_ = 0;
    throw;
  }
}

template <class T>
void Executor<T>::set_profiling(bool on) {
  const std::lock_guard lock(mutex_);
  context_.profiling = on;
  runs_ = 0;
  pack_seconds_ = update_seconds_ = 0;
  std::fill(stage_seconds_.begin(), stage_seconds_.end(), 0);
  for (auto& worker : workers_) worker->profile.clear();
}

template <class T>
void Executor<T>::set_serial(bool on) {
  const std::lock_guard lock(mutex_);
  serial_ = on;
  planned_threads_ = 0;
}

template <class T>
void Executor<T>::invalidate_parameters() {
  const std::lock_guard lock(mutex_);
  ++generation_;
  stale_.assign(stale_.size(), true);
}

template <class T>
void Executor<T>::pack_again() {
  const std::lock_guard lock(mutex_);
  stale_.assign(stale_.size(), true);
}

template class Executor<float>;
template class Executor<double>;

}  // namespace cavs
