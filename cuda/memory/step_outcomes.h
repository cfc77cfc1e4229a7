// Outcomes of training steps: computed on the device, read by the host on demand.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "cuda/driver/device.h"
#include "cuda/driver/event.h"
#include "cuda/kernels/arguments.h"
#include "cuda/memory/allocation.h"

namespace cavs::cuda {

// A launched training step. `outcome` is empty until it has been read.
struct Step {
  std::optional<Outcome> outcome;
};

// Outcomes of the steps of one set of parameters, of which two may be in flight. All methods but
// wait() require a DeviceLock.
class StepOutcomes {
 public:
  explicit StepOutcomes(std::shared_ptr<Device> device);

  // Make room for one more step by waiting for the step before the last.
  void reserve();
  // A constant "accepted" outcome, for updates whose gradients were validated elsewhere, and the
  // count of such updates.
  const Outcome* accepted() const { return on_device(kAccepted); }
  void applied() { ++counted_; }
  // Address to which the device writes the outcome of the next step.
  Outcome* next() const { return on_device(next_); }
  // Outcome that decides whether a step launched after `after` is applied. Null: unconditionally.
  const Outcome* condition(const std::shared_ptr<Step>& after) const;
  // Register the step that writes next().
  std::shared_ptr<Step> launched();

  // Outcome of `step`; waits for it, but not for later steps.
  Outcome wait(Step& step);
  size_t device_bytes() const { return device_memory_.bytes(); }
  // True if steps have changed the parameters since forget(); waits for those in flight.
  bool moved();
  // Number of steps known to have changed them since forget().
  int64_t counted() const { return counted_; }
  void forget();

 private:
  // Behind the pending outcomes: a constant refused one and a constant accepted one.
  static constexpr int kMaxPending = 2, kRefused = kMaxPending, kAccepted = kRefused + 1;
  struct Pending {
    explicit Pending(const std::shared_ptr<Device>& device) : done(device, false) {}
    Event done;
    std::shared_ptr<Step> step;
    bool counts = false;  // since forget()
  };
  Outcome* on_device(int index) const { return device_memory_.as<Outcome>() + index; }
  void end(int index);

  std::shared_ptr<Device> device_;
  DeviceMemory device_memory_;
  PinnedMemory host_;
  std::array<Pending, kMaxPending> pending_;
  int next_ = 0;
  int64_t counted_ = 0;
};

}  // namespace cavs::cuda
