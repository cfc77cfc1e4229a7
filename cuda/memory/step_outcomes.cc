#include "cuda/memory/step_outcomes.h"

#include <stdexcept>

#include "cuda/driver/context.h"

namespace cavs::cuda {

StepOutcomes::StepOutcomes(std::shared_ptr<Device> device)
    : device_(std::move(device)),
      device_memory_(device_),
      host_(device_),
      pending_{Pending(device_), Pending(device_)} {
  constexpr size_t bytes = sizeof(Outcome) * (kAccepted + 1);
  device_memory_.reserve(bytes);
  device_->zero(device_memory_.at(), bytes);
  host_.reserve(bytes);
  auto* good = host_.at<Outcome>(sizeof(Outcome) * kAccepted);
  *good = {0, 0, 1, 1};
  device_->upload(reinterpret_cast<Address>(on_device(kAccepted)), good, sizeof(Outcome));
}

void StepOutcomes::reserve() { end(next_); }

const Outcome* StepOutcomes::condition(const std::shared_ptr<Step>& after) const {
  if (after == nullptr) return nullptr;
  if (after->outcome) return after->outcome->ok ? nullptr : on_device(kRefused);
  for (int i = 0; i < kMaxPending; ++i) {
    if (pending_[i].step == after) return on_device(i);
  }
  throw std::invalid_argument("the step before is one of other parameters");
}

std::shared_ptr<Step> StepOutcomes::launched() {
  Pending& pending = pending_[next_];
  device_->download(host_.at<Outcome>(sizeof(Outcome) * next_),
                    reinterpret_cast<Address>(on_device(next_)), sizeof(Outcome));
  pending.done.record();
  pending.step = std::make_shared<Step>();
  pending.counts = true;
  next_ = (next_ + 1) % kMaxPending;
  return pending.step;
}

void StepOutcomes::end(int at) {
  Pending& pending = pending_[at];
  if (pending.step == nullptr) return;
  pending.done.synchronize();
  const Outcome found = *host_.at<Outcome>(sizeof(Outcome) * at);
  pending.step->outcome = found;
  pending.step = nullptr;
  counted_ += found.ok != 0 && pending.counts;
}

Outcome StepOutcomes::wait(Step& step) {
  const auto index_of = [&] {
    int at = 0;
    while (pending_[at].step.get() != &step) ++at;
    return at;
  };
  const Event* done = nullptr;
  {
    const DeviceLock lock(*device_);
    if (step.outcome) return *step.outcome;
    done = &pending_[index_of()].done;
  }
  // Other threads may launch meanwhile: the event may then be that of a later step.
  {
    const CurrentContext here(*device_);
    done->synchronize();
  }
  const DeviceLock lock(*device_);
  if (!step.outcome) end(index_of());
  return *step.outcome;
}

bool StepOutcomes::moved() {
  for (int at = 0; at < kMaxPending; ++at) end(at);
  return counted_ > 0;
}

void StepOutcomes::forget() {
  counted_ = 0;
  for (Pending& pending : pending_) pending.counts = false;
}

}  // namespace cavs::cuda
