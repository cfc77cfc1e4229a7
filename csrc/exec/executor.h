// The CPU executor: binds addresses, packs weights, runs the plan and updates parameters.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "exec/bind.h"
#include "exec/packing.h"
#include "exec/plan.h"
#include "exec/progress.h"
#include "exec/worker.h"

namespace cavs {

template <class T>
struct Parameter {
  T* data;
  int64_t size;
};

template <class T>
struct Inputs {
  std::shared_ptr<const Schedule> schedule;
  std::vector<FloatFeature<T>> float_features;
  std::vector<IntFeature> int_features;
  uint64_t seed = 0, step = 0;
  // In data-parallel training, see Count. Totals of the global batch: graphs, vertices and edges of
  // each structure, then present values of each int feature; empty if this batch is the global one.
  double scale = 1;
  std::vector<double> totals;
};

// Values for part of a parameter: row i of them belongs at element offset + (rows ? rows[i] : i) *
// stride of the parameter.
template <class T>
struct GradientPiece {
  int32_t param;
  const T* values;
  const int32_t* rows;
  int64_t count, width, stride, offset;

  // True if the rows follow one another in the parameter.
  bool is_contiguous() const { return rows == nullptr && stride == width; }
};

// The gradient that a run computed: dense, or one row for each touched row of the parameter. The
// owner, if set, keeps the values alive, but not the rows.
template <class T>
struct GradientView {
  T* values = nullptr;
  const int32_t* rows = nullptr;
  int64_t count = 0, width = 0;
  bool sparse = false;
  std::shared_ptr<const void> owner = nullptr;
};

// An output in the caller's order; zero if it has no row.
template <class T>
struct Output {
  Output(const std::shared_ptr<Memory>& memory, int64_t rows, int64_t width)
      : rows(rows), width(width), values(memory, memory->as<T>()) {}

  int64_t rows, width;
  std::shared_ptr<T[]> values;
};

constexpr int32_t kMostStates = 8;    // state arrays of a parameter
constexpr int32_t kMostNumbers = 32;  // numbers of an update that a rule reads, such as its rate

// A rule as a fused elementwise kernel. Its registers are, in this order, those of value, gradient
// and states, those of numbers of the update, and others.
struct UpdateProgram {
  std::string key;  // equal for equal kernels
  std::vector<MapOp> ops;
  std::vector<int16_t> results;  // registers of the new value and states
  int32_t registers = 0, numbers = 0;

  int32_t states() const { return static_cast<int32_t>(results.size()) - 1; }
  int32_t loads() const { return 2 + states() + numbers; }
};

// The states of a parameter; null where there are fewer.
template <class T>
using StateArrays = std::array<T*, kMostStates>;

// Options of an update, per parameter: optimiser states, and whether it is trained.
template <class T>
struct Update {
  OptimizerStep step{};
  std::vector<StateArrays<T>> states;
  std::vector<bool> trainable;
  std::optional<double> max_norm;
  std::vector<std::pair<double, double>> scales;  // lr and weight decay; empty: all 1
  // The rule, if it is not that of `step`, and its numbers per parameter; for all parameters if
  // scales is empty.
  std::shared_ptr<const UpdateProgram> program;
  std::vector<std::vector<double>> numbers;

  const std::vector<double>& numbers_of(int32_t param) const {
    return numbers[scales.empty() ? 0 : param];
  }

  OptimizerStep of(int32_t param) const {
    OptimizerStep own = step;
    if (scales.empty()) return own;
    own.lr *= scales[param].first;
    own.weight_decay *= scales[param].second;
    return own;
  }
};

struct StepResult {
  double loss, grad_norm;
};

// A run of which the stages before the cotangents of outputs are complete. It owns their values.
struct ForwardRun {
  std::shared_ptr<Memory> arena;  // null after the backward run
  std::shared_ptr<const Schedule> schedule;
  uint64_t seed = 0, step = 0;
  int64_t generation = 0;  // that of the parameters when it read them
};

// Thrown by a run that another thread has abandoned.
struct Abandoned : std::runtime_error {
  Abandoned() : std::runtime_error("the run was abandoned") {}
};

struct Report {
  struct Line {
    std::string label;
    std::string kind;
    double seconds = 0;
    int64_t calls = 0;
    double flops = 0;  // in the last run
    // In the last run: bytes read through index and segment maps; of these, bytes read along edges
    // of the graphs, as gather and its gradient do; bytes written.
    int64_t indexed_bytes = 0, gather_bytes = 0, write_bytes = 0;
  };
  size_t arena_bytes = 0, peak_bytes = 0, scratch_bytes = 0, packed_bytes = 0;
  int64_t runs = 0;  // while profiling
  double pack_seconds = 0;
  double update_seconds = 0;  // gradient norm and optimiser
  // Global stages that run concurrently report their common time at the first of them.
  std::vector<Line> stages, instructions;
  std::vector<int32_t> widths;  // rows of each task
  int32_t phases = 0, threads = 0;
  int32_t shared_phases = 0;  // phases with work for several threads
  double estimated_seconds = 0;
  Products products = Products::kExact;
};

// Thread-safe; a second run waits for the first.
template <class T>
class Executor {
 public:
  // Parameters belong to the caller and are read and written in place.
  Executor(std::shared_ptr<const Program> program, std::vector<Parameter<T>> parameters,
           Products products);

  // Run forward and, if the program has it, backward. Return the loss, 0 without one.
  double run(const Inputs<T>& inputs);
  // Run, then update the trainable parameters once, unless loss or gradient norm is not finite.
  StepResult step(const Inputs<T>& inputs, const Update<T>& update);

  // Run the stages before the cotangents of outputs, then, at any later time, the others, with the
  // inputs of the forward run and the cotangents. Any number of forward runs may be outstanding.
  // Throws std::logic_error for a run that has no backward run, or has had it, and where parameters
  // were written since. A backward run leaves memory of gradients that views keep to them, and uses
  // other memory.
  std::shared_ptr<ForwardRun> forward(const Inputs<T>& inputs);
  void backward(ForwardRun& run, const Inputs<T>& inputs);
  // True if parameters were written, or may have been, since the forward run.
  bool is_outdated(const ForwardRun& run) const;

  // Split step for data-parallel training, where gradients are reduced between backward and update:
  // arm_gradients, then run on one thread while others wait_gradient; then squared_norm and apply.
  void arm_gradients();
  // Wait until elements [begin, end) of the gradient are final; false if the run failed or was
  // cancelled. Large gradients become final in slabs of gradient_slab elements.
  bool wait_gradient(int32_t param, int64_t begin, int64_t end) const;
  int64_t gradient_slab(int32_t param) const { return analysis_.slab.at(param); }
  void give_up_gradients() { progress_.fail(); }
  // From any thread: end the run that is under way early, by Abandoned; without one, do nothing.
  void abandon();
  // Valid until the next run; if that is a backward run, as long as the view keeps its owner.
  GradientView<T> gradient_view(int32_t param) const;
  GradientView<T> gradient_block() const;
  // Store dense gradients in `memory` from now on, which has as many elements. Return the memory
  // they were stored in before, so that the caller decides where it is freed.
  std::shared_ptr<T> set_gradient_block(const std::shared_ptr<T>& memory);
  // Parameters with a gradient, in the order in which gradients are completed; dense gradients are
  // stored in that order.
  const std::vector<int32_t>& gradient_order() const { return analysis_.gradient_order; }
  // From now on runs keep the operands of a parameter's gradient instead of the gradient. False,
  // without effect, unless the gradient is a sum of products over whole rows.
  bool set_factored(int32_t param);
  // X [rows, k] and dY [rows, n] of the last run; valid until the next.
  std::pair<GradientView<T>, GradientView<T>> factors(int32_t param) const;
  // out [k, n] += left [rows, k]^T right [rows, n].
  void add_product(const T* left, const T* right, int64_t rows, int64_t k, int64_t n, T* out) const;
  double squared_norm(const std::vector<GradientPiece<T>>& pieces);
  // Update the trainable parameters once with gradients times `scale`.
  void apply(const Update<T>& update, const std::vector<GradientPiece<T>>& pieces, double scale);

  // Copy the gradient of a parameter after a run to `out`, as the full array; zeros if it has none.
  void gradient(int32_t param, T* out) const;
  // Touched rows (ascending) and their values, or nothing if the gradient is dense.
  std::optional<std::pair<std::vector<int32_t>, Output<T>>> gradient_rows(int32_t param);
  Output<T> output(int32_t buffer);

  Report report() const;
  void set_profiling(bool on);
  void set_serial(bool on);  // one vertex at a time on one thread: slow, for comparison
  // The parameters were written: pack them again, and refuse to continue runs that read them.
  void invalidate_parameters();
  // Pack the parameters again, in case they were written. The caller knows which runs to continue.
  void pack_again();
  int64_t parameter_size(int32_t param) const { return context_.sizes.at(param); }

 private:
  using Counter = std::atomic<int32_t>;
  // For each phase: units completed, then units started of every thread's share. std::atomic cannot
  // move, so growing allocates new ones.
  struct Counters {
    std::unique_ptr<Counter[]> data;
    size_t size = 0;
    void reset(size_t n);
  };

  // The stages of a run: all, or those before, and after, the cotangents of outputs.
  enum class Part : uint8_t { kAll, kForward, kBackward };

  void bind_structure(const std::shared_ptr<const Schedule>& schedule);
  void lay_out();
  void lay_out_scratch();
  void bind(const Inputs<T>& inputs, Part part);
  void bind_outputs(Part part);
  std::shared_ptr<Memory> output_memory(size_t bytes);
  double run_locked(const Inputs<T>& inputs, Part part = Part::kAll);
  // Store dense gradients in `memory`; return the previous memory.
  std::shared_ptr<T> place_gradients(const std::shared_ptr<T>& memory);
  // Store dense gradients in new memory if a view keeps the present one.
  void leave_viewed_gradients();
  // True if a weight has packed memory of its own.
  bool packs(size_t w) const { return packed_at_[w].weight == static_cast<int32_t>(w); }
  void plan_prologue(Part part);
  // The phases of a part, as a range of those of the plan.
  std::pair<size_t, size_t> phases_of(Part part) const;
  double execute(Part part);
  void walk(int32_t thread, int32_t threads);
  void walk_all(int32_t thread, int32_t threads);
  void wait(const Counter& done, int32_t units) const;
  void check_param(int32_t param) const;
  int32_t threads_of_update() const;
  double sum_of_squares(const std::vector<GradientPiece<T>>& work);
  // Update the parameters by the gradients of the last run, if `loss` and their norm are finite;
  // return the norm.
  double apply_gradients(const Update<T>& update, double loss);
  void apply_optimizer(const Update<T>& update, const std::vector<GradientPiece<T>>& work,
                       double scale);
  void check_ran() const;
  // Compute a gradient of which the last run kept the operands.
  void multiply(const Factors& factors, T* out) const;

  std::shared_ptr<const Program> program_;
  const Kernels<T>& kernels_;
  Analysis analysis_;
  RunContext<T> context_;
  std::vector<Patch> patches_;
  BoundProgram<T> bound_;
  IndexFeatures index_features_;
  std::vector<std::unique_ptr<Worker<T>>> workers_;

  // State of the current batch.
  std::shared_ptr<const Schedule> schedule_;
  Spaces spaces_;
  Plan plan_;
  std::vector<Item> prologue_;
  int32_t planned_threads_ = 0;
  double cost_ = 0;     // estimated nanoseconds on one thread
  bool alone_ = false;  // run and update stay on the calling thread
  size_t arena_needed_ = 0, peak_ = 0;
  int32_t scratch_edges_ = -1;
  std::atomic<bool> broken_{false};  // a thread of the run has thrown, or it was abandoned
  std::atomic<bool> abandoned_{false};
  bool ran_ = false;

  std::shared_ptr<T> gradient_block_;
  int64_t gradient_elements_ = 0;
  std::shared_ptr<Memory> arena_;  // the last run's
  std::shared_ptr<Memory> own_arena_ = std::make_shared<Memory>();
  MemoryPool arenas_;  // for forward runs
  MemoryPool output_pool_;
  // Memory of copied outputs, in their order: of this run until the caller asks for it.
  std::vector<std::shared_ptr<Memory>> output_memory_;
  Memory ones_, zeros_, counts_;
  std::pair<size_t, size_t> phases_{0, 0};        // phases of the present run
  int64_t generation_ = 0;                        // number of writes to parameters
  std::vector<PackedAt> packed_at_;               // per weight
  std::vector<bool> stale_;                       // weight must be packed again
  std::vector<bool> reads_;                       // the plan reads the packed memory of the weight
  std::vector<std::vector<int32_t>> weights_of_;  // parameter -> weights
  std::vector<double> partial_;
  std::vector<GradientPiece<T>> pieces_;  // for an update
  std::vector<T> update_scratch_;
  std::vector<int64_t> feature_rows_;
  GradientProgress progress_;
  Counters counters_;
  int64_t small_gradients_ = 0;  // elements of dense gradients; 0 if caches cannot hold them
  bool serial_ = false;
  std::vector<double> stage_seconds_;
  double pack_seconds_ = 0, update_seconds_ = 0;
  int64_t runs_ = 0;
  mutable std::mutex mutex_;
  // Guards pointers that views hand out, also during a run: locked briefly, after mutex_.
  mutable std::mutex views_;
};

}  // namespace cavs
