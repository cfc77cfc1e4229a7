#include "cuda/executor/executor.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "cuda/driver/context.h"
#include "exec/spaces.h"
#include "exec/validate.h"

namespace cavs::cuda {
namespace {

std::shared_ptr<const Program> validated(std::shared_ptr<const Program> program,
                                         const std::vector<int64_t>& sizes) {
  validate(*program);
  validate_parameters(*program, sizes);
  return program;
}

size_t count_loads(const Program& p, bool loads) {
  size_t n = 0;
  for (const Instruction& in : p.instructions) n += loads ? in.loads.size() : in.inputs.size();
  return n;
}

}  // namespace

template <class T>
Executor<T>::Executor(std::shared_ptr<const Program> program, CompiledProgram<T> compiled)
    : program_(validated(std::move(program), compiled.parameters->sizes())),
      device_(compiled.device),
      library_(compiled.library),
      parameters_(compiled.parameters),
      analysis_(analyse(*program_, sizeof(T), parameters_->sizes())),
      index_features_(*program_, parameters_->sizes()),
      arrays_(*program_, count_loads(*program_, false), count_loads(*program_, true)),
      tables_(make_tables(*program_, analysis_.dense_gradient, parameters_->sizes())),
      mirror_(device_, analysis_, parameters_->sizes()),
      collectives_(device_),
      arena_(device_),
      scratch_(device_),
      gradients_(device_),
      weights_(device_),
      ones_(device_),
      table_values_(device_),
      pieces_(device_),
      partial_(device_),
      arena_guards_(device_),
      scratch_guards_(device_),
      narrow_guards_(device_),
      narrow_scratch_(device_),
      arrived_(device_),
      readback_(device_),
      staging_(device_),
      timeline_(device_),
      replays_(device_, compiled.replay) {
  const DeviceLock lock(*device_);
  const Program& p = *program_;
  for (const Instruction& in : p.instructions) {
    if (!in.outward) continue;
    throw std::invalid_argument("[" + in.label + "] sums over parents in a kernel of the CPU's");
  }
  bind_shapes(p, analysis_, bound_, patches_);
  source_scratch_.resize(bound_.sources.size());
  load_scratch_.resize(bound_.loads.size());
  store_scratch_.resize(bound_.stores.size());
  out_scratch_.resize(p.instructions.size());
  for (const Body& body : analysis_.bodies) {
    // In a stage over edges, edge rows are the rows of the stage itself.
    const bool vertices = is_vertex(body.space);
    for (int32_t id : body.instructions) {
      Bound<T>& b = bound_.instructions[id];
      for (int32_t i = b.first_patch; i < b.end_patch; ++i) {
        const Patch& patch = patches_[i];
        const int32_t relation = vertices ? patch.relation : kNoRelation;
        const ScratchOperand operand{patch.buffer, patch.column, relation};
        switch (patch.target) {
          case Patch::Target::kSource:
            source_scratch_[patch.at] = operand;
            break;
          case Patch::Target::kLoad:
            load_scratch_[patch.at] = operand;
            break;
          case Patch::Target::kStore:
            store_scratch_[patch.at] = operand;
            break;
          case Patch::Target::kOut:
            out_scratch_[patch.at] = operand;
            break;
        }
      }
    }
  }
  load_maps(compiled);
  mark_half(compiled.half);
  load_persistent(compiled);
  lay_out_gradients();
  plan_weights();
  plan_lstms(compiled);
  plan_sums();
  plan_copies();
  int32_t widest = 1;
  for (const Buffer& b : p.buffers) {
    if (b.role == Role::kOnes) widest = std::max(widest, b.width);
  }
  const std::vector<T> ones(widest, T(1));
  ones_.reserve(widest * sizeof(T));
  device_->upload(ones_.at(), ones.data(), widest * sizeof(T));
  device_->synchronize();
  scratch_offsets_.assign(p.buffers.size(), 0);
  slot_rows_.resize(p.instructions.size());
  calls_.resize(p.instructions.size());
  stage_seconds_.assign(p.stages.size(), 0);
  factors_of_instruction_.assign(p.instructions.size(), -1);
}

template <class T>
void Executor<T>::mark_half(const std::vector<int32_t>& buffers) {
  const Program& p = *program_;
  half_.assign(p.buffers.size(), false);
  for (int32_t b : buffers) {
    const Role role = p.buffers.at(b).role;
    if (role != Role::kArena && role != Role::kScratch) {
      throw std::invalid_argument("buffer " + std::to_string(b) + " is not one of values between " +
                                  "kernels: it cannot be stored in bfloat16");
    }
    half_[b] = true;
  }
  half_source_.assign(bound_.sources.size(), -1);
  half_out_.assign(p.instructions.size(), -1);
  for (size_t i = 0; i < p.instructions.size(); ++i) {
    const Instruction& in = p.instructions[i];
    for (size_t j = 0; j < in.inputs.size(); ++j) {
      const Operand& o = in.inputs[j];
      if (half_[o.buffer]) half_source_[bound_.instructions[i].first + j] = o.column;
    }
    if (in.out.buffer >= 0 && half_[in.out.buffer]) half_out_[i] = in.out.column;
  }
}

template <class T>
void Executor<T>::lay_out_gradients() {
  const auto& [at, elements] = mirror_.layout();
  gradients_.reserve(elements * sizeof(T));
  T* block = gradients_.as<T>();
  for (size_t i = 0; i < at.size(); ++i) {
    grads_.push_back(analysis_.dense_gradient[i] ? block + at[i] : nullptr);
  }
  device_->zero(gradients_.at(), gradients_.bytes());
}

// Weights are assembled row-major from pieces of parameters, in one launch.
template <class T>
void Executor<T>::plan_weights() {
  size_t bytes = 0;
  std::vector<size_t> at;
  std::vector<bool> multiplied(program_->weights.size(), false);  // false for weights of LSTMs
  for (const Instruction& in : program_->instructions) {
    if (traits_of(in).packed_weight) multiplied[in.weight] = true;
  }
  for (size_t i = 0; i < multiplied.size(); ++i) {
    const Weight& w = program_->weights[i];
    at.push_back(bytes);
    if (multiplied[i]) bytes += aligned(w.k * w.n * library_->packed_bytes());
  }
  weights_.reserve(bytes);
  device_->zero(weights_.at(), weights_.bytes());
  std::vector<Piece<T>> pieces;
  for (size_t i = 0; i < at.size(); ++i) {
    const Weight& w = program_->weights[i];
    packed_.push_back(reinterpret_cast<T*>(weights_.at(at[i])));
    if (!multiplied[i]) continue;
    for (const WeightPiece& q : w.pieces) {
      const size_t before = (q.k0 * w.n + q.n0) * library_->packed_bytes();
      pieces.push_back({parameters_->on_device()[q.param] + q.offset,
                        reinterpret_cast<void*>(weights_.at(at[i] + before)), q.row_stride,
                        q.col_stride, q.rows, q.cols, w.n});
    }
  }
  weight_pieces_ = static_cast<int32_t>(pieces.size());
  pieces_.reserve(pieces.size() * sizeof(Piece<T>));
  device_->upload(pieces_.at(), pieces.data(), pieces.size() * sizeof(Piece<T>));
  device_->synchronize();
}

template <class T>
void Executor<T>::prepare_parameters() {
  scatter_written_rows();
  parameters_->upload();
  if (stale_) {
    library_->pack(pieces_.as<Piece<T>>(), weight_pieces_);
    for (const auto& lstm : lstms_) lstm->pack();
  }
  stale_ = false;
}

template <class T>
void Executor<T>::clear_gradients() {
  for (size_t i = 0; i < grads_.size(); ++i) {
    if (!analysis_.zero_gradient[i]) continue;
    device_->zero(reinterpret_cast<Address>(grads_[i]), parameters_->sizes()[i] * sizeof(T));
  }
  for (size_t i = 0; i < tables_.size(); ++i) {
    const Table& t = tables_[i];
    const bool written = std::any_of(t.lookups.begin(), t.lookups.end(),
                                     [](const Lookup& lookup) { return lookup.first; });
    if (t.dense || written) continue;
    device_->zero(reinterpret_cast<Address>(table_at_[i]), t.slots.size() * t.width * sizeof(T));
  }
}

// Run the commands of a batch, directly or through the replay cache.
template <class T>
void Executor<T>::run_commands() {
  const auto all = [this] {
    clear_gradients();
    run_stages();
  };
  if (mirror_.armed()) {
    mirror_.begin(tables_);
    all();
    mirror_.finish();
  } else if (profiling_ || timeline_.on()) {  // which record events between launches
    all();
  } else {
    replays_.run(shape(), all);
  }
}

template <class T>
void Executor<T>::forward_and_backward(const Inputs<T>& inputs) {
  launches_ = 0;
  timeline_.on_host("bind", [&] { bind(inputs); });
  timeline_.on_host(
      "stage", [&] { timeline_.on_lane(Device::kCopies, "upload", [&] { staging_.upload(); }); });
  if (device_->options().guards) fill_guards();
  if (clocked_) begun_->record();
  timeline_.on_lane(0, "assemble", [&] { prepare_parameters(); });
  timeline_.on_host("launch", [&] { run_commands(); });
  if (std::exchange(clocked_, false)) ended_->record();
  if (device_->options().guards) check_guards();
  ran_ = true;
}

template <class T>
double Executor<T>::read_loss() {
  readback_.reserve(sizeof(T));
  *readback_.at<T>() = 0;
  if (program_->loss >= 0) {
    device_->download(readback_.at<T>(), address_of(program_->loss), sizeof(T));
  }
  // Gradients may still be copied on other streams; predictions are copied on lane 0 alone.
  if (!analysis_.gradient_order.empty()) {
    device_->synchronize();
  } else if (program_->loss >= 0) {
    device_->synchronize_lane();
  }
  return *readback_.at<T>();
}

template <class T>
double Executor<T>::run(const Inputs<T>& inputs) {
  try {
    const DeviceLock lock(*device_);
    forward_and_backward(inputs);
    staging_.mark_read();
    const double loss = read_loss();
    if (profiling_) {
      device_->synchronize();
      read_stage_times();
    }
    return loss;
  } catch (...) {
    mirror_.fail();
    throw;
  }
}

template <class T>
void Executor<T>::clock() {
  const DeviceLock lock(*device_);
  for (std::unique_ptr<Event>* event : {&begun_, &ended_}) {
    if (*event == nullptr) *event = std::make_unique<Event>(device_, true);
  }
  clocked_ = true;
}

template <class T>
std::optional<double> Executor<T>::clocked() {
  const DeviceLock lock(*device_);
  if (ended_ == nullptr || std::exchange(clocked_, false)) return std::nullopt;
  ended_->synchronize();
  return ended_->seconds_since(*begun_);
}

template <class T>
void Executor<T>::invalidate_parameters() {
  const DeviceLock lock(*device_);
  stale_ = true;
}

template class Executor<float>;
template class Executor<double>;

}  // namespace cavs::cuda
