#include "cuda/executor/timeline.h"

#include <algorithm>

namespace cavs::cuda {

void Timeline::set(bool on) {
  device_->synchronize();
  zero_ = nullptr;
  if (!on) return;
  marks_.clear();
  host_.clear();
  auto zero = std::make_unique<Event>(device_, true);
  zero->record(device_->stream(0));
  zero->synchronize();
  zero_at_ = now();
  zero_ = std::move(zero);
}

std::vector<Span> Timeline::spans() const {
  if (zero_ == nullptr) return {};
  device_->synchronize();
  std::vector<Span> out = host_;
  for (const Mark& m : marks_) {
    const double begin = zero_at_ + m.begin->seconds_since(*zero_);
    out.push_back({m.name, m.lane, begin, begin + m.end->seconds_since(*m.begin)});
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Span& a, const Span& b) { return a.begin < b.begin; });
  return out;
}

}  // namespace cavs::cuda
