#include "cuda/driver/commands.h"

#include <cstring>

#include "cuda/driver/device.h"

namespace cavs::cuda {
namespace {

constexpr size_t kWord = sizeof(uint64_t);
constexpr int kLaneShift = 8, kWordsShift = 16;

size_t words_of(size_t bytes) { return (bytes + kWord - 1) / kWord; }

uint64_t both(unsigned low, unsigned high) { return low | uint64_t{high} << 32; }
unsigned low(uint64_t word) { return static_cast<unsigned>(word); }
unsigned high(uint64_t word) { return static_cast<unsigned>(word >> 32); }

}  // namespace

void Commands::clear() {
  words_.clear();
  size_ = 0;
}

uint64_t* Commands::add(Type type, int lane, size_t words) {
  ++size_;
  const size_t at = words_.size();
  words_.resize(at + 1 + words);
  words_[at] = static_cast<uint64_t>(type) | static_cast<uint64_t>(lane) << kLaneShift |
               uint64_t{words} << kWordsShift;
  return words_.data() + at + 1;
}

void Commands::launch(int lane, Handle function, Grid grid, std::span<const Argument> arguments,
                      unsigned threads) {
  size_t words = 4;
  for (const Argument& a : arguments) words += 1 + words_of(a.bytes);
  uint64_t* to = add(Type::kLaunch, lane, words);
  *to++ = reinterpret_cast<uint64_t>(function);
  *to++ = both(grid.x, grid.y);
  *to++ = both(grid.z, threads);
  *to++ = both(grid.shared, grid.cooperative);
  for (const Argument& a : arguments) {
    *to++ = a.bytes;
    std::memcpy(to, a.at, a.bytes);
    to += words_of(a.bytes);
  }
}

void Commands::zero(int lane, Address at, size_t bytes) {
  uint64_t* to = add(Type::kZero, lane, 2);
  to[0] = at;
  to[1] = bytes;
}

void Commands::fork() { add(Type::kFork, 0, 0); }

void Commands::join() { add(Type::kJoin, 0, 0); }

void Commands::call(int lane, Call call, const void* data, size_t bytes) {
  uint64_t* to = add(Type::kCall, lane, 2 + words_of(bytes));
  to[0] = reinterpret_cast<uint64_t>(call);
  to[1] = bytes;
  std::memcpy(to + 2, data, bytes);
}

void Commands::issue_launch(Device& device, const uint64_t* at, const uint64_t* end) const {
  const auto function = reinterpret_cast<Handle>(at[0]);
  const Grid grid{low(at[1]), high(at[1]), low(at[2]), low(at[3]), high(at[3]) != 0};
  const unsigned threads = high(at[2]);
  arguments_.clear();
  for (at += 4; at < end; at += 1 + words_of(at[0])) arguments_.push_back({at + 1, at[0]});
  device.launch_kernel(function, grid, arguments_, threads);
}

void Commands::issue(Device& device) const {
  const int lane = device.lane();
  const uint64_t* end = words_.data() + words_.size();
  for (const uint64_t* at = words_.data(); at < end;) {
    const uint64_t head = *at++;
    const uint64_t* next = at + (head >> kWordsShift);
    device.use_lane(static_cast<int>(head >> kLaneShift & 0xff));
    switch (static_cast<Type>(head & 0xff)) {
      case Type::kLaunch:
        issue_launch(device, at, next);
        break;
      case Type::kZero:
        device.zero(at[0], at[1]);
        break;
      case Type::kFork:
        device.fork();
        break;
      case Type::kJoin:
        device.join();
        break;
      case Type::kCall:
        device.call(reinterpret_cast<Call>(at[0]), at + 2, at[1]);
    }
    at = next;
  }
  device.use_lane(lane);
}

}  // namespace cavs::cuda
