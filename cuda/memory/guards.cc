#include "cuda/memory/guards.h"

#include <algorithm>

namespace cavs::cuda {
namespace {

constexpr unsigned char kUntouched = 0xff;

}  // namespace

void Guards::clear() {
  ranges_.clear();
  end_ = 0;
}

size_t Guards::add(int32_t buffer, size_t bytes) {
  const size_t begin = aligned(end_) + kAlignment;
  end_ = begin + bytes;
  ranges_.push_back({buffer, begin, end_});
  return begin;
}

void Guards::fill(const DeviceMemory& memory) const {
  if (memory.bytes() == 0) return;
  const Driver& d = device_->driver();
  d.check(d.fill(memory.at(), kUntouched, memory.bytes(), device_->stream(0)), "cuMemsetD8Async");
}

int32_t Guards::broken(const DeviceMemory& memory) const {
  std::vector<unsigned char> found(bytes());
  device_->download(found.data(), memory.at(), found.size());
  device_->synchronize();
  const auto untouched = [&](size_t begin, size_t end) {
    return std::all_of(found.begin() + static_cast<std::ptrdiff_t>(begin),
                       found.begin() + static_cast<std::ptrdiff_t>(end),
                       [](unsigned char byte) { return byte == kUntouched; });
  };
  size_t before = 0;
  for (size_t i = 0; i < ranges_.size(); before = ranges_[i++].end) {
    if (!untouched(before, ranges_[i].begin)) return ranges_[i == 0 ? 0 : i - 1].buffer;
  }
  return ranges_.empty() || untouched(before, found.size()) ? -1 : ranges_.back().buffer;
}

}  // namespace cavs::cuda
