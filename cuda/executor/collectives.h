// Collectives over several devices, launched by the caller on a stream of this device: after the
// gradients that they read, before the update.
#pragma once

#include <memory>
#include <vector>

#include "cuda/driver/device.h"
#include "cuda/driver/event.h"

namespace cavs::cuda {

class Collectives {
 public:
  explicit Collectives(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  // Start a step without collectives.
  void begin() { count_ = 0; }
  // On any thread, one at a time: order the next collective after `computed`; mark its start and
  // end.
  void follow(const Event& computed) const;
  void open();
  void close();
  // True if all have ended within `seconds`. Does not hold the DeviceLock, so that others may go
  // on.
  bool wait(double seconds) const;
  // Make the current lane wait for them.
  void join() const;
  // Seconds that they took on the device, including waits for other devices; valid after wait().
  double seconds() const;

 private:
  struct Marks {
    explicit Marks(const std::shared_ptr<Device>& device)
        : opened(device, true), closed(device, true) {}
    Event opened, closed;
  };
  std::shared_ptr<Device> device_;
  std::vector<std::unique_ptr<Marks>> marks_;
  size_t count_ = 0;  // collectives of this step
};

}  // namespace cavs::cuda
