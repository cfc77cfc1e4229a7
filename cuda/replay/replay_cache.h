// Cache of CUDA graphs by the shape of a batch, launched where that is faster than single commands.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda/driver/commands.h"
#include "cuda/driver/device.h"
#include "cuda/driver/event.h"
#include "cuda/replay/graph.h"

namespace cavs::cuda {

// Which repeated commands are replayed: none, those for which it measures faster, or all.
enum class Replay { kNever, kAuto, kAlways };

// Times both modes of a run alternately on the device's clock, up to the end of the last command;
// this includes time of the host where the device waits for it.
class ReplayTrial {
 public:
  explicit ReplayTrial(const std::shared_ptr<Device>& device)
      : start_(device, true), end_(device, true) {}
  // True if the previous timed run has ended, so that another may be timed.
  bool ready();
  bool replays_next() const { return run_ % 2 == 1; }
  void start() { start_.record(); }
  void stop();
  bool done() const { return run_ == kRuns; }
  // The fastest run of each mode.
  double direct() const { return seconds_[0]; }
  double replayed() const { return seconds_[1]; }

 private:
  static constexpr int kRuns = 6;
  Event start_, end_;
  int run_ = 0;
  bool running_ = false;
  double seconds_[2] = {std::numeric_limits<double>::infinity(),
                        std::numeric_limits<double>::infinity()};
};

// The cache of one executor, whose modules and libraries the commands refer to. All methods require
// a DeviceLock.
class ReplayCache {
 public:
  ReplayCache(std::shared_ptr<Device> device, Replay when);

  // Run `run_commands`, which gives work to lanes 0 and 1. The first run of a shape runs directly;
  // one that repeats the commands of the previous run of its shape becomes a graph. shape: a number
  // that should differ where the commands differ.
  void run(uint64_t shape, const std::function<void()>& run_commands);

  // Statistics for users.
  struct Report {
    // Repeated commands, `commands` in number.
    struct Graph {
      size_t commands;
      bool decided, replayed;
      double direct_seconds, replay_seconds;  // 0 if not measured
    };
    int64_t runs = 0, replays = 0;
    std::vector<Graph> graphs;
    std::string trouble;  // why replays are off although they were requested
  };
  Report report() const;
  // The trouble, once; on any thread.
  std::string take_trouble() { return unreported_.exchange(false) ? trouble_ : std::string(); }

 private:
  enum class Mode { kOpen, kDirect, kReplay };
  struct Shape {
    uint64_t number;
    Commands commands;             // commands of its last recorded run
    std::unique_ptr<Graph> graph;  // graph of `commands`
    std::unique_ptr<ReplayTrial> trial;
    Mode mode = Mode::kOpen;
    int changes = 0;  // number of times its commands changed
    size_t size = 0;  // number of repeated commands
    double direct_seconds = 0, replay_seconds = 0;
  };
  Shape* find(uint64_t number);
  void decide(Shape& shape);
  bool record(Shape& shape, const std::function<void()>& run_commands);
  bool replay(Shape& shape);
  static void invalidate(Shape& shape);
  void disable(const DeviceFault& fault);
  void evict_oldest();

  std::shared_ptr<Device> device_;
  Replay when_;
  std::list<Shape> shapes_;  // most recently used first
  std::unordered_map<uint64_t, std::list<Shape>::iterator> by_number_;
  Commands commands_;  // commands of the run under way
  int64_t runs_ = 0, replays_ = 0;
  std::string trouble_;  // written once, before unreported_
  std::atomic<bool> unreported_ = false;
};

}  // namespace cavs::cuda
