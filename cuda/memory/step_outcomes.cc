#include "cuda/memory/step_outcomes.h"

#include <stdexcept>

namespace cavs::cuda {

Outcomes::Outcomes(std::shared_ptr<Device> device)
    : device_(std::move(device)),
      device_memory_(device_),
      host_(device_),
      places_{Place(device_), Place(device_)} {
  constexpr size_t bytes = sizeof(Outcome) * (kAccepted + 1);
  device_memory_.reserve(bytes);
  device_->zero(device_memory_.at(), bytes);
  host_.reserve(bytes);
  auto* good = host_.at<Outcome>(sizeof(Outcome) * kAccepted);
  *good = {0, 0, 1, 1};
  device_->upload(reinterpret_cast<Address>(on_device(kAccepted)), good, sizeof(Outcome));
}

void Outcomes::reserve() { end(next_); }

const Outcome* Outcomes::condition(const std::shared_ptr<Step>& after) const {
  if (after == nullptr) return nullptr;
  if (after->outcome) return after->outcome->ok ? nullptr : on_device(kRefused);
  for (int i = 0; i < kPlaces; ++i) {
    if (places_[i].step == after) return on_device(i);
  }
  throw std::invalid_argument("the step before is one of other parameters");
}

std::shared_ptr<Step> Outcomes::launched() {
  Place& place = places_[next_];
  device_->download(host_.at<Outcome>(sizeof(Outcome) * next_),
                    reinterpret_cast<Address>(on_device(next_)), sizeof(Outcome));
  place.done.record();
  place.step = std::make_shared<Step>();
  place.counts = true;
  next_ = (next_ + 1) % kPlaces;
  return place.step;
}

void Outcomes::end(int at) {
  Place& place = places_[at];
  if (place.step == nullptr) return;
  place.done.synchronize();
  const Outcome found = *host_.at<Outcome>(sizeof(Outcome) * at);
  place.step->outcome = found;
  place.step = nullptr;
  counted_ += found.ok != 0 && place.counts;
}

Outcome Outcomes::wait(Step& step) {
  const auto place_of = [&] {
    int at = 0;
    while (places_[at].step.get() != &step) ++at;
    return at;
  };
  const Event* done = nullptr;
  {
    const Turn turn(*device_);
    if (step.outcome) return *step.outcome;
    done = &places_[place_of()].done;
  }
  // Others may launch meanwhile. If the event is then one of a later step, that is waited for.
  {
    const Current here(*device_);
    done->synchronize();
  }
  const Turn turn(*device_);
  if (!step.outcome) end(place_of());
  return *step.outcome;
}

bool Outcomes::moved() {
  for (int at = 0; at < kPlaces; ++at) end(at);
  return counted_ > 0;
}

void Outcomes::forget() {
  counted_ = 0;
  for (Place& place : places_) place.counts = false;
}

}  // namespace cavs::cuda
