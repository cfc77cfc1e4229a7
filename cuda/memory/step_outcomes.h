// What training steps have come to: judged on the device, read by the host when it is asked.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "cuda/driver/device.h"
#include "cuda/kernels/arguments.h"

namespace cavs::cuda {

// A training step that was launched. `outcome` is empty until it has been read.
struct Step {
  std::optional<Outcome> outcome;
};

// The steps of one set of parameters, of which two may be on their way. All but wait() in a Turn.
class Outcomes {
 public:
  explicit Outcomes(std::shared_ptr<Device> device);

  // Room for one more step: the one before the last has ended from here on.
  void reserve();
  // What an update asks that others have judged: it counts. applied(): one was launched.
  const Outcome* accepted() const { return on_device(kAccepted); }
  void applied() { ++counted_; }
  // Where the device writes the outcome of the step that is being launched.
  Outcome* next() const { return on_device(next_); }
  // What that step asks whether it counts: the outcome of `after`. Null: it does in any case.
  const Outcome* condition(const std::shared_ptr<Step>& after) const;
  // The step that writes next() has been launched.
  std::shared_ptr<Step> launched();

  // What `step` has come to; waits for it, but not for steps after it.
  Outcome wait(Step& step);
  size_t device_bytes() const { return device_memory_.bytes(); }
  // Whether steps have moved the parameters since forget(); waits for those on their way.
  bool moved();
  // How many are known to have moved them since forget().
  int64_t counted() const { return counted_; }
  void forget();

 private:
  // Behind the places: an outcome that is never good, and one that always is.
  static constexpr int kPlaces = 2, kRefused = kPlaces, kAccepted = kRefused + 1;
  struct Place {
    explicit Place(const std::shared_ptr<Device>& device) : done(device, false) {}
    Event done;
    std::shared_ptr<Step> step;
    bool counts = false;  // for moved()
  };
  Outcome* on_device(int place) const { return device_memory_.as<Outcome>() + place; }
  void end(int place);

  std::shared_ptr<Device> device_;
  DeviceMemory device_memory_;
  PinnedMemory host_;
  std::array<Place, kPlaces> places_;
  int next_ = 0;
  int64_t counted_ = 0;
};

}  // namespace cavs::cuda
