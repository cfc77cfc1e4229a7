// Runs a program over batches on a device. Binding a batch assigns addresses; then a kernel is
// launched for each instruction and task, in the order of the CPU executor's plan, without Python.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuda/driver/event.h"
#include "cuda/driver/module.h"
#include "cuda/executor/collectives.h"
#include "cuda/executor/index_arrays.h"
#include "cuda/executor/persistent_arguments.h"
#include "cuda/executor/timeline.h"
#include "cuda/launch/kernel_library.h"
#include "cuda/lstm/lstm.h"
#include "cuda/memory/allocation.h"
#include "cuda/memory/gradient_mirror.h"
#include "cuda/memory/guards.h"
#include "cuda/memory/parameters.h"
#include "cuda/memory/staging.h"
#include "cuda/replay/replay_cache.h"
#include "exec/analysis.h"

namespace cavs::cuda {

// The generated kernel of a map instruction, and the number of threads that a row occupies.
struct MapName {
  int32_t instruction;
  std::string name;
  int32_t items;
};

// A kernel that runs the narrow tasks of a loop, see cavs/cuda/persistent.py.
struct PersistentName {
  int32_t stage;
  std::string name;
  int32_t blocks, shared;             // shared: bytes per block
  std::vector<int32_t> instructions;  // in the order of its parameters
};

// A program compiled for a session: all its executors share everything but the images.
template <class T>
struct CompiledProgram {
  std::shared_ptr<Device> device;
  std::shared_ptr<KernelLibrary<T>> library;
  std::shared_ptr<Parameters<T>> parameters;
  std::string image;  // cubin of the generated kernels; empty without any
  std::vector<MapName> maps;
  std::vector<int32_t> half;  // buffers of arena or scratch that are stored in bfloat16
  Replay replay;              // which repeated commands are replayed
  std::shared_ptr<const Cudnn> cudnn = nullptr;  // for programs with a kLstm
  std::string persistent_image = {};             // cubin of `persistent`
  std::vector<PersistentName> persistent = {};
};

// The rows for which an instruction is launched.
struct LaunchRows {
  RowRange rows;      // rows of the instruction's space
  int64_t first_row;  // first row of the body, where its scratch starts
  int32_t task;       // for a sum: the task that has these rows, or -1 for all rows
};

template <class T>
struct Launchers;

template <class T>
class Executor {
 public:
  Executor(std::shared_ptr<const Program> program, CompiledProgram<T> compiled);

  // See cavs::Executor.
  double run(const Inputs<T>& inputs);
  // Launch a run and an update, whose outcome the step holds later. after: the update is applied
  // only if that step was. owner: keeps the states alive while the device holds copies of them.
  std::shared_ptr<Step> launch(const Inputs<T>& inputs, const Update<T>& update,
                               std::shared_ptr<const void> owner,
                               const std::shared_ptr<Step>& after);

  // Split step for data-parallel training, see cavs::Executor. Gradients are copied to the host
  // during the run. An update with gradients of the host, times `scale`, goes on when the call
  // returns.
  void arm_gradients();
  void give_up_gradients() { mirror_.fail(); }
  bool wait_gradient(int32_t param, int64_t begin, int64_t end) const;
  int64_t gradient_slab(int32_t param) const { return analysis_.slab.at(param); }
  int64_t parameter_size(int32_t param) const { return parameters_->sizes().at(param); }
  GradientView<T> gradient_view(int32_t param);
  std::pair<T*, int64_t> gradient_block();
  const std::vector<int32_t>& gradient_order() const { return analysis_.gradient_order; }
  bool set_factored(int32_t param);
  const DeviceFactors& factors(int32_t param) const;
  void apply(const Update<T>& update, const std::vector<GradientPiece<T>>& pieces, double scale,
             std::shared_ptr<const void> owner);
  // Dense gradients that stay on the device, where collectives sum them. Pieces may refer to them.
  T* keep_gradient(int32_t param);
  T* kept_gradient(int32_t param) const;
  bool follow_gradient(int32_t param);
  double squared_norm(const std::vector<GradientPiece<T>>& kept);
  Collectives& collectives() { return collectives_; }
  Handle collective_stream() const { return device_->collectives(); }

  // Results of the last run.
  void gradient(int32_t param, T* out);
  std::optional<std::pair<std::vector<int32_t>, std::vector<T>>> gradient_rows(int32_t param);
  Output<T> output(int32_t buffer);
  void invalidate_parameters();  // another executor has changed them on the device

  // Reports.
  Report report() const;
  ReplayCache::Report replays() const;
  std::string take_trouble() { return replays_.take_trouble(); }
  // Device memory in bytes by purpose; parameters, states and workspaces are those of all programs
  // of a session. Page-locked memory of the host is counted separately.
  std::vector<std::pair<std::string, size_t>> memory() const;
  size_t page_locked_bytes() const;
  void set_tracing(bool on);
  std::vector<Span> trace() const;
  void set_profiling(bool on);
  // clock() times the next run, from its first launch to its last without an update. clocked()
  // waits for it and returns its seconds on the device, or nullopt if it failed or did not happen.
  void clock();
  std::optional<double> clocked();

 private:
  friend struct Launchers<T>;
  using States = typename Parameters<T>::States;
  // An operand in scratch: its address is fixed, its first row is that of the task.
  struct ScratchOperand {
    int32_t buffer = -1;  // -1: not in scratch
    int32_t column = 0;
    int32_t relation = -1;  // its rows are related to those of the chunk, see relation_of
  };
  struct MapLaunch {
    Handle function = nullptr;
    int32_t items = 0;
    bool random = false;
  };
  // The persistent kernel of a stage, if it has one.
  struct PersistentLoop {
    Handle function = nullptr;
    unsigned blocks = 0, shared = 0;
    std::vector<int32_t> instructions;
    Address arrived = 0;
  };

  // executor.cc: construction and runs
  void mark_half(const std::vector<int32_t>& buffers);
  void lay_out_gradients();
  void plan_weights();
  void forward_and_backward(const Inputs<T>& inputs);
  void prepare_parameters();
  void run_commands();
  void clear_gradients();
  double read_loss();

  // bind_batch.cc: addresses of a batch
  void bind(const Inputs<T>& inputs);
  void bind_structure(const std::shared_ptr<const Schedule>& schedule);
  void lay_out();
  size_t lay_out_scratch();
  size_t value_bytes(int32_t buffer) const { return half_[buffer] ? kHalfBytes : sizeof(T); }
  Addresses<T> addresses(const std::vector<FloatFeature<T>>& features) const;
  void stage_written_rows();
  void scatter_written_rows();
  uint64_t shape() const;
  void fill_guards() const;
  void check_guards() const;

  // plan_sums.cc: lanes and order of sums
  void plan_sums();
  void plan_copies();
  bool on_second_lane(int32_t stage) const;

  // run_stages.cc: launches
  void run_stages();
  void run_stage(int32_t stage);
  void run_bodies(int32_t stage);
  void run_on_second_lane(int32_t stage);
  void run_loop(int32_t stage);
  void run_task(int32_t stage, int32_t task);
  int32_t task_number(int32_t stage, int32_t i) const;
  void run_body(const Body& body, RowRange rows);
  void launch(int32_t id, const LaunchRows& rows);
  void count_launch(int32_t id);
  RowRange rows_of(int32_t id, Space body, RowRange rows) const;
  void copy_gradients(const std::vector<int32_t>& params);
  void mark_stage(int32_t stage);
  void read_stage_times();

  // operands.cc
  Rows<T> source(size_t i, int64_t first_row) const;
  Target target(int32_t id, int64_t first_row) const;
  std::vector<Rows<T>> operands(int32_t id, int32_t from, int32_t to, RowRange rows,
                                int64_t first_row) const;
  std::vector<RowRange> even_runs(int32_t id, RowRange rows) const;
  T* scratch(const ScratchOperand& operand) const;
  int64_t scratch_base(const ScratchOperand& operand, int64_t first_row) const;

  // instructions/*.cc
  void load_maps(const CompiledProgram<T>& compiled);
  void add_map_arguments(int32_t id, int64_t first_row, std::vector<uint64_t>& words) const;
  void copy_factors(DeviceFactors& factors, int32_t id, RowRange rows);
  void stage_lookups();
  void stage_task_lookups(const Table& table, const Lookup& lookup);
  void plan_lstms(const CompiledProgram<T>& compiled);
  void bind_lstms();
  void stage_chains();
  void resolve_chains();

  // persistent.cc
  void load_persistent(const CompiledProgram<T>& compiled);
  bool narrow(int32_t stage, const BatchTask& task) const;
  void lay_out_narrow_scratch();
  void stage_tasks();
  int32_t narrow_tasks(int32_t stage, int32_t from) const;
  void run_persistent(int32_t stage, int32_t from, int32_t count);

  // update.cc
  void plan_update_chunks();
  void resolve_update_chunks();
  void update_chunks(const Update<T>& update, double scale, const Outcome* outcome);
  bool on_device(const GradientPiece<T>& piece) const;
  void upload_mirrored(const std::vector<GradientPiece<T>>& pieces);
  void upload_gradients(const std::vector<GradientPiece<T>>& pieces, const States& states);

  // results.cc
  void check_param(int32_t param) const;
  void check_ran() const;
  Address address_of(int32_t buffer) const;

  std::shared_ptr<const Program> program_;
  std::shared_ptr<Device> device_;
  std::shared_ptr<KernelLibrary<T>> library_;
  std::shared_ptr<Parameters<T>> parameters_;
  Analysis analysis_;
  IndexFeatures index_features_;
  BoundProgram<T> bound_;
  std::vector<Patch> patches_;
  std::vector<ScratchOperand> source_scratch_, load_scratch_, store_scratch_, out_scratch_;
  std::vector<bool> half_;                       // by buffer: stored in bfloat16
  std::vector<int32_t> half_source_, half_out_;  // first column if stored in bfloat16, or -1
  std::unique_ptr<Module> module_;
  std::vector<MapLaunch> maps_;  // by instruction
  IndexArraysOnDevice arrays_;
  std::vector<Table> tables_;
  std::vector<int32_t>
      launched_at_;  // by stage: itself, or the loop that it runs concurrently with
  // By stage: the sums that it launches jointly; the stage that launches its own sum.
  std::vector<std::vector<int32_t>> joint_;
  std::vector<int32_t> leader_;

  GradientMirror<T> mirror_;
  Collectives collectives_;
  // By stage, by step: gradients that are copied after it.
  std::vector<std::vector<int32_t>> copied_after_stage_, copied_after_step_;
  std::vector<std::unique_ptr<DeviceFactors>> factors_;
  std::vector<int32_t> factors_of_instruction_;  // index into factors_, or -1
  std::vector<std::unique_ptr<Lstm<T>>> lstms_;
  std::vector<int32_t> lstm_of_instruction_;  // index into lstms_, or -1

  DeviceMemory arena_, scratch_, gradients_, weights_, ones_, table_values_;
  DeviceMemory pieces_, partial_;
  Guards arena_guards_, scratch_guards_, narrow_guards_;
  std::unique_ptr<Module> persistent_module_;
  std::vector<PersistentLoop> persistent_;  // by stage
  DeviceMemory narrow_scratch_, arrived_;
  std::vector<size_t> narrow_offsets_;  // by buffer in scratch
  bool narrow_ = false;                 // operands are those of a persistent kernel
  std::vector<int32_t> task_numbers_;
  int32_t tasks_at_ = -1;  // staging item of task_numbers_
  PersistentArguments persistent_arguments_;
  PinnedMemory readback_;  // results that the host reads
  Staging staging_;
  std::vector<T*> grads_;
  std::vector<const T*> packed_;
  std::vector<T*> table_at_;
  int32_t weight_pieces_ = 0;
  bool stale_ = true;  // packed weights

  // The current batch.
  std::shared_ptr<const Schedule> schedule_;
  Spaces spaces_;
  std::vector<size_t> scratch_offsets_;
  std::vector<T> numbers_;  // counts, on the host
  std::vector<FloatFeature<T>> features_;
  std::vector<std::vector<SlotRows>> slot_rows_;  // by lookup instruction
  std::vector<UpdateChunk<T>> chunks_;
  std::vector<int32_t> chunk_params_;
  std::vector<std::pair<int32_t, int64_t>> chunk_rows_;  // table or -1, first of its slots
  const States* states_ = nullptr;                       // states of the step under way
  std::vector<bool> trainable_;
  std::vector<int32_t> table_slots_;  // staging items
  int32_t chunks_at_ = -1, numbers_at_ = -1, draw_at_ = -1;
  struct WrittenRows {  // staging items of parameter rows that the host has written
    int32_t values, rows, numbers;
  };
  std::vector<WrittenRows> written_;
  std::vector<int32_t> count_;  // 0, 1, 2, ...
  Chains chains_;               // with lstms_
  struct ChainItems {
    int32_t row_of = -1, position_of = -1, lengths = -1;
  } chains_at_;
  size_t arena_needed_ = 0, peak_ = 0, scratch_bytes_ = 0;
  std::array<uint64_t, 2> draw_{};  // seed and step
  bool ran_ = false;
  int64_t launches_ = 0;         // instructions launched in the last run
  std::vector<int64_t> calls_;   // by instruction, while profiling
  std::vector<uint64_t> words_;  // arguments of a map
  std::vector<Argument> arguments_;

  Timeline timeline_;
  bool profiling_ = false, clocked_ = false;
  int64_t runs_ = 0;
  std::vector<std::unique_ptr<Event>> events_;
  std::unique_ptr<Event> begun_, ended_;  // start and end of the last timed run
  std::vector<double> stage_seconds_;
  ReplayCache replays_;  // last: destroyed before everything that its commands refer to
};

}  // namespace cavs::cuda
