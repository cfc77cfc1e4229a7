#include "cuda/replay/replay_cache.h"

#include <algorithm>

namespace cavs::cuda {
namespace {

constexpr size_t kMostShapes = 1024;       // shapes known, most of which occurred once
constexpr size_t kMostGraphs = 128;        // shapes with recorded commands or a graph
constexpr size_t kMostCommands = 1 << 16;  // commands recorded for all shapes
constexpr int kMostChanges = 4;  // then the shape's number does not determine its commands

}  // namespace

bool ReplayTrial::ready() {
  if (!running_) return true;
  if (!end_.reached()) return false;
  double& best = seconds_[run_ % 2];
  best = std::min(best, end_.seconds_since(start_));
  ++run_;
  running_ = false;
  return true;
}

void ReplayTrial::stop() {
  end_.record();
  running_ = true;
}

ReplayCache::ReplayCache(std::shared_ptr<Device> device, Replay when)
    : device_(std::move(device)), when_(when) {
  if (when_ != Replay::kNever && !device_->driver().has_graphs()) {
    trouble_ = "the driver has no graphs";
    unreported_ = when_ == Replay::kAlways;
    when_ = Replay::kNever;
  }
}

// Return a known shape; null for a new one, which is known from then on.
ReplayCache::Shape* ReplayCache::find(uint64_t number) {
  const auto known = by_number_.find(number);
  if (known != by_number_.end()) {
    shapes_.splice(shapes_.begin(), shapes_, known->second);
    return &shapes_.front();
  }
  if (shapes_.size() == kMostShapes) {
    by_number_.erase(shapes_.back().number);
    shapes_.pop_back();
  }
  shapes_.emplace_front().number = number;
  by_number_[number] = shapes_.begin();
  return nullptr;
}

void ReplayCache::run(uint64_t number, const std::function<void()>& run_commands) {
  ++runs_;
  Shape* shape = when_ == Replay::kNever ? nullptr : find(number);
  if (shape == nullptr) return run_commands();
  ReplayTrial* trial = shape->trial.get();
  bool timed = trial != nullptr && trial->ready();
  if (timed && trial->done()) {
    decide(*shape);
    timed = false;
  }
  if (shape->mode == Mode::kDirect) return run_commands();
  if (!timed) {
    record(*shape, run_commands);
    return;
  }
  trial->start();
  if (trial->replays_next()) {
    if (record(*shape, run_commands)) trial->stop();
  } else {
    run_commands();
    trial->stop();
  }
}

// Choose the faster mode, after both have been timed.
void ReplayCache::decide(Shape& shape) {
  shape.direct_seconds = shape.trial->direct();
  shape.replay_seconds = shape.trial->replayed();
  shape.trial.reset();
  shape.mode = shape.replay_seconds < shape.direct_seconds ? Mode::kReplay : Mode::kDirect;
  if (shape.mode == Mode::kReplay) return;
  shape.graph.reset();
  shape.commands = {};
}

// Record a run, then issue or replay it. True if a graph was launched.
bool ReplayCache::record(Shape& shape, const std::function<void()>& run_commands) {
  commands_.clear();
  device_->record(commands_);
  run_commands();
  if (!device_->stop_recording()) {
    invalidate(shape);
    return false;
  }
  const bool again = commands_.size() > 0 && commands_ == shape.commands;
  if (again && replay(shape)) return true;
  commands_.issue(*device_);
  if (again || when_ == Replay::kNever) return false;
  std::swap(shape.commands, commands_);
  invalidate(shape);
  evict_oldest();
  return false;
}

bool ReplayCache::replay(Shape& shape) {
  try {
    if (shape.graph == nullptr) {
      shape.graph = std::make_unique<Graph>(device_, shape.commands);
      shape.size = shape.commands.size();
      shape.changes = 0;
      if (when_ == Replay::kAuto) shape.trial = std::make_unique<ReplayTrial>(device_);
      if (when_ == Replay::kAlways) shape.mode = Mode::kReplay;
    }
    shape.graph->launch();
  } catch (const DeviceFault& fault) {
    disable(fault);
    return false;
  }
  ++replays_;
  return true;
}

// Invalidate the cached commands and graph of this shape.
void ReplayCache::invalidate(Shape& shape) {
  shape.graph.reset();
  shape.trial.reset();
  shape.size = 0;
  shape.mode = ++shape.changes > kMostChanges ? Mode::kDirect : Mode::kOpen;
  if (shape.mode == Mode::kDirect) shape.commands = {};
}

// Stop replaying: a lack of memory or a limit of the driver would affect other graphs, too. If the
// device has failed, the commands that are issued next fail as well.
void ReplayCache::disable(const DeviceFault& fault) {
  when_ = Replay::kNever;
  trouble_ = fault.what();
  unreported_ = true;
  shapes_.clear();
  by_number_.clear();
}

void ReplayCache::evict_oldest() {
  size_t kept = 0, commands = 0;
  for (Shape& shape : shapes_) {
    if (shape.commands.size() == 0) continue;
    commands += shape.commands.size();
    if (++kept == 1 || (kept <= kMostGraphs && commands <= kMostCommands)) continue;
    const uint64_t number = shape.number;
    shape = {};
    shape.number = number;
  }
}

ReplayCache::Report ReplayCache::report() const {
  Report out{runs_, replays_, {}, trouble_};
  for (const Shape& s : shapes_) {
    if (s.size == 0) continue;
    out.graphs.push_back({s.size, s.mode != Mode::kOpen,
                          s.graph != nullptr && s.mode == Mode::kReplay, s.direct_seconds,
                          s.replay_seconds});
  }
  return out;
}

}  // namespace cavs::cuda
