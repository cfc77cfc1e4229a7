// Timeline: when each stage ran on the lanes of a device and on the host, recorded without waiting.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "cuda/driver/device.h"
#include "cuda/driver/event.h"

namespace cavs::cuda {

// A period in which work occupied a lane or the host, in seconds of the host's steady clock.
struct Span {
  std::string name;
  int lane;  // or kHost
  double begin, end;
};

class Timeline {
 public:
  static constexpr int kHost = -1;

  explicit Timeline(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  // Start an empty timeline once the device is idle, or stop.
  void set(bool on);
  bool on() const { return zero_ != nullptr; }
  // Run `work` and record when its launches ran on a lane, or when it ran on the host.
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
  // All spans since set(true); waits for the device.
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
  std::unique_ptr<Event> zero_;  // null while off
  double zero_at_ = 0;
  std::vector<Mark> marks_;
  std::vector<Span> host_;
};

}  // namespace cavs::cuda
