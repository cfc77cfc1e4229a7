// An event of the driver.
#pragma once

#include <memory>

#include "cuda/driver/device.h"

namespace cavs::cuda {

// A point in the work of a lane, to wait for; with `timing`, also to measure time.
class Event {
 public:
  Event(std::shared_ptr<Device> device, bool timing);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record();                   // on the current lane
  void record(Handle stream);      // on a stream
  void wait() const;               // make the current lane wait
  void wait(Handle stream) const;  // make a stream wait
  bool reached() const;
  void synchronize() const;                        // make the host wait
  double seconds_since(const Event& start) const;  // valid after synchronize()

 private:
  std::shared_ptr<Device> device_;
  Handle event_ = nullptr;
};

}  // namespace cavs::cuda
