// Sums over many devices, which others launch on a stream of this one: behind the gradients that
// they read, before the update.
#pragma once

#include <memory>
#include <vector>

#include "cuda/driver/device.h"

namespace cavs::cuda {

class Collectives {
 public:
  explicit Collectives(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  // A step begins: none are under way.
  void begin() { count_ = 0; }
  // On any thread, one at a time: the next one is to be launched after `made`, then it was.
  void follow(const Event& made) const;
  void open();
  void close();
  // Whether all have ended within `seconds`. Not in a Turn, so that others may go on.
  bool wait(double seconds) const;
  // The present lane goes on after them.
  void join() const;
  // That the device spent in them, waiting for other devices included; after wait().
  double seconds() const;

 private:
  struct Marks {
    explicit Marks(const std::shared_ptr<Device>& device)
        : opened(device, true), closed(device, true) {}
    Event opened, closed;
  };
  std::shared_ptr<Device> device_;
  std::vector<std::unique_ptr<Marks>> marks_;
  size_t count_ = 0;  // of those in this step
};

}  // namespace cavs::cuda
