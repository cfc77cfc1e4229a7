// Runs a program over batches on a device: places what the batch needs, then launches a kernel for
// each instruction and task, in the order of the CPU executor's plan, without Python in between.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuda/executor/collectives.h"
#include "cuda/executor/timeline.h"
#include "cuda/launch/kernel_library.h"
#include "cuda/lstm/lstm.h"
#include "cuda/memory/gradient_mirror.h"
#include "cuda/memory/guards.h"
#include "cuda/memory/parameters.h"
#include "cuda/memory/staging.h"
#include "cuda/replay/replay_cache.h"
#include "exec/analysis.h"

namespace cavs::cuda {

// The generated kernel of a map instruction, and how many threads one of its rows keeps busy.
struct MapName {
  int32_t instruction;
  std::string name;
  int32_t items;
};

// A kernel that walks the narrow tasks of a loop, see cavs/cuda/persistent.py.
struct PersistentName {
  int32_t stage;
  std::string name;
  int32_t blocks, shared;             // shared: bytes of a block
  std::vector<int32_t> instructions;  // in the order of its parameters
};

// What a session has compiled: the same for all its executors but `image`.
template <class T>
struct Compiled {
  std::shared_ptr<Device> device;
  std::shared_ptr<Library<T>> library;
  std::shared_ptr<Parameters<T>> parameters;
  std::string image;  // of the generated kernels; empty without any
  std::vector<MapName> maps;
  std::vector<int32_t> half;  // buffers stored in bfloat16: of the arena or scratch
  Replay replay;              // of commands that come again
  std::shared_ptr<const Cudnn> cudnn = nullptr;  // for programs with a kLstm
  std::string persistent_image = {};             // of `persistent`
  std::vector<PersistentName> persistent = {};
};

// The rows that an instruction is launched for.
struct LaunchRows {
  RowRange rows;      // of its own space
  int64_t first_row;  // where the chunk begins: the first row of its scratch
  int32_t task;       // of a sum: the task whose rows these are, -1 for all rows
};

template <class T>
struct Launchers;

template <class T>
class Executor {
 public:
  Executor(std::shared_ptr<const Program> program, Compiled<T> compiled);

  // As cavs::Executor's.
  double run(const Inputs<T>& inputs);
  // A run and an update are launched; the step's outcome says later what they have come to. after:
  // counts only if that step did. owner: of the states, which stay alive as long as their copies on
  // the device count.
  std::shared_ptr<Step> launch(const Inputs<T>& inputs, const Update<T>& update,
                               std::shared_ptr<const void> owner,
                               const std::shared_ptr<Step>& after);

  // A step in parts, as cavs::Executor's; what others wait for comes to the host during the run.
  // Updates with gradients of the host, times `scale`, go on when the call returns.
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
  // A dense gradient that stays on the device, where others sum it: values of pieces may be there.
  T* keep_gradient(int32_t param);
  T* kept_gradient(int32_t param) const;
  bool follow_gradient(int32_t param);
  double squared_norm(const std::vector<GradientPiece<T>>& kept);
  Collectives& collectives() { return collectives_; }
  Handle collective_stream() const { return device_->collectives(); }

  void gradient(int32_t param, T* out);
  std::optional<std::pair<std::vector<int32_t>, std::vector<T>>> gradient_rows(int32_t param);
  Output<T> output(int32_t buffer);
  Report report() const;
  Replays::Report replays() const;
  std::string take_trouble() { return replays_.take_trouble(); }
  // Bytes of the device by what they hold; of all programs of a session: parameters, states,
  // workspaces. Page-locked memory of the host is told apart.
  std::vector<std::pair<std::string, size_t>> memory() const;
  size_t page_locked_bytes() const;
  void set_tracing(bool on);
  std::vector<Span> trace() const;
  void set_profiling(bool on);
  // Clocks the next run, from its first launch to its last without an update, then says how long it
  // took on the device, which it waits for: seconds; nothing if it failed, or there was none.
  void clock();
  std::optional<double> clocked();
  void invalidate_parameters();  // others have changed them on the device

 private:
  friend struct Launchers<T>;
  using States = typename Parameters<T>::States;
  // An operand in scratch: its address is fixed, its first row that of the task.
  struct Place {
    int32_t buffer = -1;  // -1: not in scratch
    int32_t column = 0;
    bool edges = false;
  };
  struct Map {
    Handle function = nullptr;
    int32_t items = 0;
    bool random = false;
  };

  // Of a stage: the kernel that walks its narrow tasks, or none.
  struct Persistent {
    Handle function = nullptr;
    unsigned blocks = 0, shared = 0;
    std::vector<int32_t> instructions;
    Address arrived = 0;
  };

  void load_persistent(const Compiled<T>& compiled);
  bool narrow(int32_t stage, const BatchTask& task) const;
  void lay_out_narrow_scratch();
  void stage_tasks();
  int32_t narrow_tasks(int32_t stage, int32_t from) const;
  void run_persistent(int32_t stage, int32_t from, int32_t count);
  void load_maps(const Compiled<T>& compiled);
  void place_halves(const std::vector<int32_t>& buffers);
  void lay_out_gradients();
  void plan_weights();
  void plan_lstms(const Compiled<T>& compiled);
  void bind_structure(const std::shared_ptr<const Schedule>& schedule);
  void lay_out();
  size_t lay_out_scratch();
  size_t value_bytes(int32_t buffer) const { return half_[buffer] ? kHalfBytes : sizeof(T); }
  void bind(const Inputs<T>& inputs);
  Addresses<T> addresses(const std::vector<FloatFeature<T>>& features) const;
  void stage_tables();
  void stage_written();
  void place_written();
  void bind_lstms();
  void stage_chains();
  void place_chains();
  void stage_task_lookups(const Table& table, const Lookup& lookup);

  void forward_and_backward(const Inputs<T>& inputs);
  void begin();
  void command();
  void clear_gradients();
  uint64_t shape() const;
  void plan_sums();
  void plan_leaving();
  bool beside(int32_t stage) const;
  void walk();
  void run_stage(int32_t stage);
  void run_bodies(int32_t stage);
  void run_beside(int32_t stage);
  void walk_loop(int32_t stage);
  void run_task(int32_t stage, int32_t task);
  int32_t task_number(int32_t stage, int32_t i) const;
  void run_body(const Body& body, RowRange rows);
  void count_launch(int32_t id);
  void launch(int32_t id, const LaunchRows& rows);
  void copy_factors(DeviceFactors& factors, int32_t id, RowRange rows);
  void leave(const std::vector<int32_t>& params);
  void add_map_words(int32_t id, int64_t first_row);
  Rows<T> source(size_t i, int64_t first_row) const;
  std::vector<RowRange> even_runs(int32_t id, RowRange rows) const;
  std::vector<Rows<T>> operands(int32_t id, int32_t from, int32_t to, RowRange rows,
                                int64_t first_row) const;
  Target target(int32_t id, int64_t first_row) const;
  T* scratch(const Place& place) const;
  int64_t scratch_base(const Place& place, int64_t first_row) const;
  RowRange rows_of(int32_t id, Space body, RowRange rows) const;
  double read_loss();
  void fill_guards() const;
  void check_guards() const;
  void timed(int32_t stage);

  void plan_stretches();
  void resolve_stretches();
  void update_stretches(const Update<T>& update, double scale, const Outcome* outcome);
  bool kept(const GradientPiece<T>& piece) const;
  void upload_mirrored(const std::vector<GradientPiece<T>>& pieces);
  void upload_gradients(const std::vector<GradientPiece<T>>& pieces, const States& states);
  void check_param(int32_t param) const;
  void check_ran() const;
  Address address_of(int32_t buffer) const;

  std::shared_ptr<const Program> program_;
  std::shared_ptr<Device> device_;
  std::shared_ptr<Library<T>> library_;
  std::shared_ptr<Parameters<T>> parameters_;
  Analysis analysis_;
  IndexFeatures index_features_;
  BoundProgram<T> bound_;
  std::vector<Patch> patches_;
  std::vector<Place> source_place_, load_place_, store_place_, out_place_;
  std::vector<bool> half_;                       // of each buffer: stored in bfloat16
  std::vector<int32_t> half_source_, half_out_;  // first column of one that is, else -1
  std::unique_ptr<Module> module_;
  std::vector<Map> maps_;
  DeviceArrays arrays_;
  std::vector<Table> tables_;
  std::vector<int32_t> start_;  // of each stage: itself, or the loop beside which it runs
  // Of each stage that sums rows: the sums that one kernel makes there, or the stage where its own
  // is among them; of all others none, and themselves.
  std::vector<std::vector<int32_t>> together_;
  std::vector<int32_t> leader_;

  Mirror<T> mirror_;
  Collectives collectives_;
  // Of each stage and of each step: gradients that leave after it.
  std::vector<std::vector<int32_t>> done_after_, done_after_step_;
  std::vector<std::unique_ptr<DeviceFactors>> factors_;
  std::vector<int32_t> factors_of_instruction_;  // or -1
  std::vector<std::unique_ptr<Lstm<T>>> lstms_;
  std::vector<int32_t> lstm_of_instruction_;  // or -1

  DeviceMemory arena_, scratch_, gradients_, weights_, ones_, table_values_;
  DeviceMemory pieces_, partial_;
  Guards arena_guards_, scratch_guards_, narrow_guards_;
  std::unique_ptr<Module> persistent_module_;
  std::vector<Persistent> persistent_;  // of each stage
  DeviceMemory narrow_scratch_, arrived_;
  std::vector<size_t> narrow_offsets_;  // of each buffer in scratch
  bool narrow_ = false;                 // scratch is that of narrow tasks, rows those of a task
  std::vector<int32_t> task_numbers_;
  int32_t tasks_at_ = -1;  // their piece
  PinnedMemory read_;      // what the host reads of a run
  Staging staging_;
  std::vector<T*> grads_;
  std::vector<const T*> packed_;
  std::vector<T*> table_at_;
  int32_t weight_pieces_ = 0;
  bool stale_ = true;  // packed weights

  // Of the present batch.
  std::shared_ptr<const Schedule> schedule_;
  Spaces spaces_;
  std::vector<size_t> scratch_offsets_;
  std::vector<T> numbers_;  // counts, on the host
  std::vector<FloatFeature<T>> features_;
  std::vector<std::vector<SlotRows>> slot_rows_;  // of each lookup instruction
  std::vector<Stretch<T>> stretches_;
  std::vector<int32_t> stretch_params_;
  std::vector<std::pair<int32_t, int64_t>> stretch_rows_;  // table or -1, first of its slots
  const States* states_ = nullptr;                         // of the step under way
  std::vector<bool> trainable_;
  std::vector<int32_t> table_slots_;  // pieces
  int32_t stretches_at_ = -1, numbers_at_ = -1, draw_at_ = -1;
  struct Written {  // rows of a parameter that the host has written: pieces of the staging
    int32_t values, rows, numbers;
  };
  std::vector<Written> written_;
  std::vector<int32_t> count_;  // 0, 1, 2, ...
  Chains chains_;               // with lstms_
  struct ChainPieces {
    int32_t row_of = -1, place_of = -1, lengths = -1;
  } chains_at_;
  size_t arena_needed_ = 0, peak_ = 0, scratch_bytes_ = 0;
  std::array<uint64_t, 2> draw_{};  // seed and step
  bool ran_ = false;
  int64_t launches_ = 0;         // instructions launched in the last run
  std::vector<int64_t> calls_;   // of each instruction, while profiling
  std::vector<uint64_t> words_;  // arguments of a generated kernel
  std::vector<Argument> arguments_;
  // The same of one that walks tasks: which word, or which structure of sources, and its bytes.
  struct Given {
    bool word;
    size_t at, bytes;
  };
  std::vector<Given> given_;
  std::vector<Sources<T>> sources_;

  Timeline timeline_;
  bool profiling_ = false, clocked_ = false;
  int64_t runs_ = 0;
  std::vector<std::unique_ptr<Event>> events_;
  std::unique_ptr<Event> begun_, ended_;  // of the last run that was clocked
  std::vector<double> stage_seconds_;
  Replays replays_;  // of what is above: gone before it
};

}  // namespace cavs::cuda
