#include "cuda/replay/replay_cache.h"

#include <algorithm>

namespace cavs::cuda {
namespace {

constexpr size_t kMostShapes = 1024;       // known, of which most may have come once
constexpr size_t kMostGraphs = 128;        // kept, or commands that may become one
constexpr size_t kMostCommands = 1 << 16;  // in them
constexpr int kMostChanges = 4;            // then a shape's number does not tell its commands

}  // namespace

bool Trial::ready() {
  if (!under_way_) return true;
  if (!end_.reached()) return false;
  double& best = seconds_[turn_ % 2];
  best = std::min(best, end_.seconds_since(start_));
  ++turn_;
  under_way_ = false;
  return true;
}

void Trial::stop() {
  end_.record();
  under_way_ = true;
}

Replays::Replays(std::shared_ptr<Device> device, Replay when)
    : device_(std::move(device)), when_(when) {
  if (when_ != Replay::kNever && !device_->driver().has_graphs()) {
    trouble_ = "the driver has no graphs";
    untold_ = when_ == Replay::kAlways;
    when_ = Replay::kNever;
  }
}

// Null for one that was not known before, and now is.
Replays::Shape* Replays::find(uint64_t number) {
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

void Replays::run(uint64_t number, const std::function<void()>& walk) {
  ++runs_;
  Shape* shape = when_ == Replay::kNever ? nullptr : find(number);
  if (shape == nullptr) return walk();
  Trial* trial = shape->trial.get();
  bool timed = trial != nullptr && trial->ready();
  if (timed && trial->over()) {
    settle(*shape);
    timed = false;
  }
  if (shape->way == Way::kDirect) return walk();
  if (!timed) {
    record(*shape, walk);
    return;
  }
  trial->start();
  if (trial->replays_next()) {
    if (record(*shape, walk)) trial->stop();
  } else {
    walk();
    trial->stop();
  }
}

// Both ways have been timed.
void Replays::settle(Shape& shape) {
  shape.direct_seconds = shape.trial->direct();
  shape.replay_seconds = shape.trial->replayed();
  shape.trial.reset();
  shape.way = shape.replay_seconds < shape.direct_seconds ? Way::kReplay : Way::kDirect;
  if (shape.way == Way::kReplay) return;
  shape.graph.reset();
  shape.commands = {};
}

// Whether a graph has run, not the commands one by one.
bool Replays::record(Shape& shape, const std::function<void()>& walk) {
  commands_.clear();
  device_->record(commands_);
  walk();
  if (!device_->recorded()) {
    changed(shape);
    return false;
  }
  const bool again = commands_.size() > 0 && commands_ == shape.commands;
  if (again && replay(shape)) return true;
  commands_.issue(*device_);
  if (again || when_ == Replay::kNever) return false;
  std::swap(shape.commands, commands_);
  changed(shape);
  forget_oldest();
  return false;
}

bool Replays::replay(Shape& shape) {
  try {
    if (shape.graph == nullptr) {
      shape.graph = std::make_unique<Graph>(device_, shape.commands);
      shape.size = shape.commands.size();
      shape.changes = 0;
      if (when_ == Replay::kAuto) shape.trial = std::make_unique<Trial>(device_);
      if (when_ == Replay::kAlways) shape.way = Way::kReplay;
    }
    shape.graph->launch();
  } catch (const DeviceFault& fault) {
    give_up(fault);
    return false;
  }
  ++replays_;
  return true;
}

// What was known of a shape's commands holds no more.
void Replays::changed(Shape& shape) {
  shape.graph.reset();
  shape.trial.reset();
  shape.size = 0;
  shape.way = ++shape.changes > kMostChanges ? Way::kDirect : Way::kOpen;
  if (shape.way == Way::kDirect) shape.commands = {};
}

// What one graph is refused for, want of memory or a driver's limit, others would be too. A device
// that has failed fails the commands that are then issued as well.
void Replays::give_up(const DeviceFault& fault) {
  when_ = Replay::kNever;
  trouble_ = fault.what();
  untold_ = true;
  shapes_.clear();
  by_number_.clear();
}

void Replays::forget_oldest() {
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

Replays::Report Replays::report() const {
  Report out{runs_, replays_, {}, trouble_};
  for (const Shape& s : shapes_) {
    if (s.size == 0) continue;
    out.graphs.push_back({s.size, s.way != Way::kOpen, s.graph != nullptr && s.way == Way::kReplay,
                          s.direct_seconds, s.replay_seconds});
  }
  return out;
}

}  // namespace cavs::cuda
