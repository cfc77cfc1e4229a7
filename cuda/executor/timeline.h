// What the lanes of a device and the host did when: steps are recorded as they run, nothing waits.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "cuda/driver/device.h"

namespace cavs::cuda {

// What stood on a lane of the device, or kept the host busy, from when to when: seconds of the
// host's steady clock, whose zero is anywhere.
struct Span {
  std::string name;
  int lane;  // kHost: the host
  double begin, end;
};

class Timeline {
 public:
  static constexpr int kHost = -1;

  explicit Timeline(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  // Starts from nothing, once the device is idle, or stops.
  void set(bool on);
  bool on() const { return zero_ != nullptr; }
  // What `work` gives a lane, or takes the host.
  template <class F>
  void on_lane(int lane, const std::string& name, F work) {
    if (zero_ == nullptr) return work();
    auto begin = std::make_unique<Event>(device_, true),
         end = std::make_unique<Event>(device_, true);
    begin->record(device_->stream(lane));
    work();
    end->record(device_->stream(lane));
    marks_.push_back({name, lane, std::move(begin), std::move(end)});
  }
  template <class F>
  void on_host(const std::string& name, F work) {
    if (zero_ == nullptr) return work();
    const double begin = now();
    work();
    host_.push_back({name, kHost, begin, now()});
  }
  // All since set(true); waits for the device.
  std::vector<Span> spans() const;

 private:
  struct Mark {
    std::string name;
    int lane;
    std::unique_ptr<Event> begin, end;
  };
  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  std::shared_ptr<Device> device_;
  std::unique_ptr<Event> zero_;  // null: off
  double zero_at_ = 0;
  std::vector<Mark> marks_;
  std::vector<Span> host_;
};

}  // namespace cavs::cuda
