#include "cuda/driver/event.h"

#include "cuda/driver/context.h"

namespace cavs::cuda {
namespace {

constexpr int kNotReady = 600;  // CUDA_ERROR_NOT_READY

}  // namespace

Event::Event(std::shared_ptr<Device> device, bool timing) : device_(std::move(device)) {
  const CurrentContext here(*device_);
  const Driver& d = device_->driver();
  d.check(d.event_create(&event_, timing ? 0 : kNoTiming), "cuEventCreate");
}

Event::~Event() {
  if (event_ == nullptr) return;
  const CurrentContext here(*device_, std::nothrow);
  if (here) device_->driver().event_destroy(event_);
}

void Event::record() { record(device_->stream()); }

void Event::record(Handle stream) {
  const Driver& d = device_->driver();
  d.check(d.event_record(event_, stream), "cuEventRecord");
}

void Event::wait() const { wait(device_->stream()); }

void Event::wait(Handle stream) const {
  const Driver& d = device_->driver();
  d.check(d.stream_wait(stream, event_, 0), "cuStreamWaitEvent");
}

bool Event::reached() const {
  const Driver& d = device_->driver();
  const int result = d.event_query(event_);
  if (result != kNotReady) d.check(result, "cuEventQuery");
  return result != kNotReady;
}

void Event::synchronize() const {
  const Driver& d = device_->driver();
  d.check(d.event_synchronize(event_), "cuEventSynchronize");
}

double Event::seconds_since(const Event& start) const {
  float milliseconds = 0;
  const Driver& d = device_->driver();
  d.check(d.event_elapsed(&milliseconds, start.event_, event_), "cuEventElapsedTime");
  return milliseconds * 1e-3;
}

}  // namespace cavs::cuda
