// Binding of a batch: arena, scratch, features, index arrays and slots get their addresses.
#include <algorithm>

#include "cuda/executor/executor.h"
#include "exec/host_io.h"
#include "exec/spaces.h"

namespace cavs::cuda {

// Bind what depends on the shape of the batch and on where features are present; kept while the
// same schedule repeats.
template <class T>
void Executor<T>::bind_structure(const std::shared_ptr<const Schedule>& schedule) {
  const SelectedRows& selected = index_features_.selected();
  if (schedule == schedule_ && selected == spaces_.selected) return;
  schedule_ = nullptr;
  resolve_spaces(*program_, *schedule, selected, spaces_);
  schedule_ = schedule;
  try {
    lay_out();
  } catch (...) {
    schedule_ = nullptr;
    throw;
  }
}

template <class T>
void Executor<T>::lay_out() {
  std::vector<Lifetime>& lives = analysis_.lifetimes;
  for (size_t i = 0; i < lives.size(); ++i) {
    const Buffer& b = program_->buffers[i];
    if (b.role == Role::kArena)
      lives[i].bytes = value_bytes(static_cast<int32_t>(i)) * b.width * spaces_.rows_of(b).size();
  }
  arena_needed_ = pack_lifetimes(lives);
  if (device_->options().guards) {
    arena_guards_.clear();
    for (size_t i = 0; i < lives.size(); ++i) {
      if (program_->buffers[i].role != Role::kArena) continue;
      lives[i].offset = arena_guards_.add(static_cast<int32_t>(i), lives[i].bytes);
    }
    arena_needed_ = arena_guards_.bytes();
  }
  peak_ = peak_live(lives, analysis_.steps);
  arena_.reserve(arena_needed_);
  scratch_bytes_ = lay_out_scratch();
  scratch_.reserve(scratch_bytes_);
  lay_out_narrow_scratch();
  bind_lstms();
}

// Lay out scratch for the largest task of each body; bodies share the memory.
template <class T>
size_t Executor<T>::lay_out_scratch() {
  const auto bodies = analysis_.bodies.size();
  std::vector<int64_t> rows(bodies, 0), related(bodies, 0);
  const auto grow = [&](int32_t body, RowRange r) {
    if (body < 0) return;
    rows[body] = std::max<int64_t>(rows[body], r.size());
    if (!is_vertex(analysis_.bodies[body].space)) return;
    for (const int32_t relation : analysis_.bodies[body].relations)
      related[body] = std::max<int64_t>(related[body], spaces_.related(r, relation).size());
  };
  for (size_t s = 0; s < program_->stages.size(); ++s) {
    const Stage& stage = program_->stages[s];
    const std::vector<int32_t>& of = analysis_.bodies_of_stage[s];
    if (stage.type == StageType::kRows) grow(of[0], spaces_.rows(stage.space));
    if (stage.type != StageType::kLoop) continue;
    for (const BatchTask& task : schedule_->tasks) grow(of[spaces_.kinds[task.kind]], task.rows);
  }
  size_t most = 0;
  scratch_guards_.clear();
  for (size_t i = 0; i < bodies; ++i) {
    const Body& body = analysis_.bodies[i];
    std::vector<Lifetime> lives;
    for (const ScratchUse& use : body.scratch) {
      const Buffer& b = program_->buffers[use.buffer];
      const bool own = relation_of(b.space) == kNoRelation || !is_vertex(body.space);
      const auto n = static_cast<size_t>(own ? rows[i] : related[i]);
      lives.push_back({use.first, use.last, value_bytes(use.buffer) * b.width * n});
    }
    most = std::max(most, pack_lifetimes(lives));
    for (size_t j = 0; j < lives.size(); ++j) {
      const int32_t buffer = body.scratch[j].buffer;
      scratch_offsets_[buffer] =
          device_->options().guards ? scratch_guards_.add(buffer, lives[j].bytes) : lives[j].offset;
    }
  }
  return device_->options().guards ? scratch_guards_.bytes() : most;
}

template <class T>
void Executor<T>::fill_guards() const {
  arena_guards_.fill(arena_);
  scratch_guards_.fill(scratch_);
  narrow_guards_.fill(narrow_scratch_);
}

// The message names the instructions that write the buffer.
template <class T>
void Executor<T>::check_guards() const {
  int32_t buffer = arena_guards_.broken(arena_);
  if (buffer < 0) buffer = scratch_guards_.broken(scratch_);
  if (buffer < 0) buffer = narrow_guards_.broken(narrow_scratch_);
  if (buffer < 0) return;
  std::string labels;
  for (const Instruction& in : program_->instructions) {
    bool writes = false;
    each_output(in, [&](int32_t written) { writes |= written == buffer; });
    if (writes) labels += " [" + in.label + "]";
  }
  throw DeviceFault(
      "guard bytes changed next to buffer " + std::to_string(buffer) + ", the result of" + labels,
      "this is a bug of cavs; device='cpu' goes on working");
}

template <class T>
Addresses<T> Executor<T>::addresses(const std::vector<FloatFeature<T>>& features) const {
  Addresses<T> at;
  at.arena = arena_.template as<T>();
  at.lifetimes = &analysis_.lifetimes;
  at.params = &parameters_->on_device();
  at.grads = &grads_;
  at.features = &features;
  at.ones = ones_.template as<T>();
  at.counts = numbers_.data() - kFewestCount;
  at.packed = &packed_;
  at.schedule = schedule_.get();
  at.spaces = &spaces_;
  at.index_features = &index_features_;
  at.seed = draw_[0];
  at.step = draw_[1];
  return at;
}

// A hash of what determines the commands of a batch, except memory that grows.
template <class T>
uint64_t Executor<T>::shape() const {
  uint64_t hash = staging_.parity();
  const auto mix = [&](uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32;
  };
  for (const BatchTask& task : schedule_->tasks) {
    mix(task.kind);
    mix(task.rows.end);
    for (const int32_t* related : spaces_.offsets) {  // edges, and pairs if they are computed
      if (related != nullptr) mix(related[task.rows.end]);
    }
  }
  for (size_t l = 0; l < program_->links.size(); ++l) mix(schedule_->num_pairs(l));
  for (const RowRange& range : spaces_.ranges) mix(range.end);
  for (const RowRange& range : spaces_.selected.present) mix(range.end);
  for (const RowRange& range : spaces_.selected.distinct) mix(range.end);
  for (const RowRange& range : spaces_.structures) mix(range.end);
  for (const Table& table : tables_) mix(table.slots.size());
  return hash;
}

// Addresses are bound twice: first with index arrays of the host, which sort the slots of tables,
// then with those of the device.
template <class T>
void Executor<T>::bind(const Inputs<T>& inputs) {
  if (inputs.schedule == nullptr) throw std::invalid_argument("no schedule");
  ran_ = false;
  draw_ = {inputs.seed, inputs.step};
  std::vector<int64_t> rows;
  for (const FloatFeature<T>& f : inputs.float_features) rows.push_back(f.rows);
  for (const Buffer& b : program_->buffers) {
    if (b.role == Role::kFeature) rows.resize(std::max<size_t>(rows.size(), b.index + 1), 0);
  }
  index_features_.bind(*inputs.schedule, inputs.int_features, rows);
  bind_structure(inputs.schedule);
  numbers_.assign(index_features_.num_features() - kFewestCount, T(0));
  fill_counts(inputs, index_features_, numbers_.data() - kFewestCount);
  bind_addresses(*program_, addresses(inputs.float_features), bound_);

  staging_.clear();
  features_ = inputs.float_features;
  std::vector<int32_t> at_feature;
  for (const FloatFeature<T>& f : features_) {
    at_feature.push_back(staging_.add(f.data, f.rows * f.width * sizeof(T)));
  }
  numbers_at_ = staging_.add(std::span<const T>(numbers_));
  draw_at_ = staging_.add(std::span<const uint64_t>(draw_));
  arrays_.stage(*schedule_, index_features_, staging_);
  stage_tasks();
  stage_chains();
  stage_lookups();
  for (const auto& f : factors_) f->template bind<T>(bound_, spaces_);
  stage_written_rows();
  plan_update_chunks();
  chunks_at_ = staging_.add(std::span<const UpdateChunk<T>>(chunks_));
  staging_.reserve();
  resolve_update_chunks();

  resolve_chains();
  arrays_.resolve(staging_);
  for (size_t i = 0; i < features_.size(); ++i) features_[i].data = staging_.at<T>(at_feature[i]);
  Addresses<T> at = addresses(features_);
  at.counts = staging_.at<T>(numbers_at_) - kFewestCount;
  bind_addresses(*program_, at, bound_);
}

template <class T>
void Executor<T>::stage_written_rows() {
  written_.clear();
  parameters_->gather_rows();
  const auto& all = parameters_->rows_written();
  size_t most = 0;
  for (const auto& r : all) most = std::max(most, r.rows.size() + 1);
  for (size_t i = count_.size(); i < most; ++i) count_.push_back(static_cast<int32_t>(i));
  for (const auto& r : all) {
    written_.push_back({staging_.add(std::span<const T>(r.values)),
                        staging_.add(std::span<const int32_t>(r.rows)),
                        staging_.add(std::span<const int32_t>(count_))});
  }
}

// Write rows of parameters as sums of one row each.
template <class T>
void Executor<T>::scatter_written_rows() {
  const auto& all = parameters_->rows_written();
  for (size_t i = 0; i < all.size(); ++i) {
    const auto& r = all[i];
    const auto& at = written_[i];
    const Rows<T> values{.data = staging_.at<T>(at.values),
                         .stride = r.width,
                         .width = static_cast<int32_t>(r.width)};
    const auto* numbers = staging_.at<int32_t>(at.numbers);
    library_->lookup_grad(values, numbers, numbers, staging_.at<int32_t>(at.rows),
                          static_cast<int>(r.rows.size()), parameters_->on_device()[r.param], true);
  }
  parameters_->forget_rows();
}

#define CAVS_INSTANTIATE(T)                                                          \
  template void Executor<T>::bind(const Inputs<T>&);                                 \
  template uint64_t Executor<T>::shape() const;                                      \
  template void Executor<T>::bind_structure(const std::shared_ptr<const Schedule>&); \
  template void Executor<T>::fill_guards() const;                                    \
  template void Executor<T>::check_guards() const;                                   \
  template void Executor<T>::scatter_written_rows();
CAVS_INSTANTIATE(float)
CAVS_INSTANTIATE(double)
#undef CAVS_INSTANTIATE

}  // namespace cavs::cuda
