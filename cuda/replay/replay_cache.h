// Walks of batches whose commands come again: done by a graph of the driver where that is faster.
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
#include "cuda/replay/graph.h"

namespace cavs::cuda {

// Which commands that come again are replayed: none, those that measure faster so, all.
enum class Replay { kNever, kAuto, kAlways };

// Times a walk both ways, in turns, on the device's clock: until the last command has ended, the
// host's part included where the device waits for it.
class Trial {
 public:
  explicit Trial(const std::shared_ptr<Device>& device)
      : start_(device, true), end_(device, true) {}
  // Whether another walk may be timed: the last one has ended.
  bool ready();
  bool replays_next() const { return turn_ % 2 == 1; }
  void start() { start_.record(); }
  void stop();
  bool over() const { return turn_ == kTurns; }
  // The fastest of each.
  double direct() const { return seconds_[0]; }
  double replayed() const { return seconds_[1]; }

 private:
  static constexpr int kTurns = 6;
  Event start_, end_;
  int turn_ = 0;
  bool under_way_ = false;
  double seconds_[2] = {std::numeric_limits<double>::infinity(),
                        std::numeric_limits<double>::infinity()};
};

// Of one executor, whose modules and libraries the commands name. All in a Turn.
class Replays {
 public:
  Replays(std::shared_ptr<Device> device, Replay when);

  // A walk, which commands lanes 0 and 1 of the device. A walk of a new shape runs as it comes; one
  // whose commands are those of the last of its shape becomes a graph. shape: any number that
  // differs where the commands do, if it can.
  void run(uint64_t shape, const std::function<void()>& walk);

  // What has become of them.
  struct Report {
    // Commands that came again, as many as `commands`.
    struct Graph {
      size_t commands;
      bool decided, replayed;
      double direct_seconds, replay_seconds;  // 0 where they were not measured
    };
    int64_t runs = 0, replays = 0;
    std::vector<Graph> graphs;
    std::string trouble;  // why there are no replays although they were asked for
  };
  Report report() const;
  // The trouble, once; on any thread.
  std::string take_trouble() { return untold_.exchange(false) ? trouble_ : std::string(); }

 private:
  enum class Way { kOpen, kDirect, kReplay };
  struct Shape {
    uint64_t number;
    Commands commands;             // of its last walk, where that was recorded
    std::unique_ptr<Graph> graph;  // of them
    std::unique_ptr<Trial> trial;
    Way way = Way::kOpen;
    int changes = 0;  // of its commands
    size_t size = 0;  // of the commands that came again
    double direct_seconds = 0, replay_seconds = 0;
  };
  Shape* find(uint64_t number);
  void settle(Shape& shape);
  bool record(Shape& shape, const std::function<void()>& walk);
  bool replay(Shape& shape);
  static void changed(Shape& shape);
  void give_up(const DeviceFault& fault);
  void forget_oldest();

  std::shared_ptr<Device> device_;
  Replay when_;
  std::list<Shape> shapes_;  // the latest first
  std::unordered_map<uint64_t, std::list<Shape>::iterator> by_number_;
  Commands commands_;  // of the present walk
  int64_t runs_ = 0, replays_ = 0;
  std::string trouble_;  // written once, before untold_
  std::atomic<bool> untold_ = false;
};

}  // namespace cavs::cuda
