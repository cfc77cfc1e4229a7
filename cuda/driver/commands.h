// What a batch has a device do, kept instead of done at once: to be compared with what an earlier
// batch did, then given to the driver command by command, or all together as a graph.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "cuda/driver/driver.h"

namespace cavs::cuda {

class Device;

// Blocks, and for each so many bytes of dynamic shared memory. Cooperative: all run at once.
struct Grid {
  unsigned x = 1, y = 1, z = 1, shared = 0;
  bool cooperative = false;
};

// An argument of a kernel.
struct Argument {
  const void* at;
  size_t bytes;
};

// Whether equal values of a type have equal bytes. (Of numbers not all do: 0 and -0 differ, which
// does no harm.)
template <class A>
constexpr bool kPlainBytes =
    std::has_unique_object_representations_v<A> || std::is_floating_point_v<A>;

// Work that a library gives to `stream`, that of `lane`; `data`: what the caller has kept for it.
using Call = void (*)(const void* data, int lane, Handle stream);

class Commands {
 public:
  void clear();
  size_t size() const { return size_; }  // how many
  // The methods of a device that may be kept.
  void launch(int lane, Handle function, Grid grid, std::span<const Argument> arguments,
              unsigned threads);
  void zero(int lane, Address at, size_t bytes);
  void fork();
  void join();
  void call(int lane, Call call, const void* data, size_t bytes);

  // Has the device do them in their order, on their lanes.
  void issue(Device& device) const;
  // Byte by byte: equal ones do the same.
  bool operator==(const Commands& other) const { return words_ == other.words_; }

 private:
  enum class Kind : uint8_t { kLaunch, kZero, kFork, kJoin, kCall };
  uint64_t* add(Kind kind, int lane, size_t words);
  void issue_launch(Device& device, const uint64_t* at, const uint64_t* end) const;

  // A command is its head (kind, lane, number of words behind it), then what it takes. What does
  // not fill its last word is followed by zeros.
  std::vector<uint64_t> words_;
  size_t size_ = 0;
  mutable std::vector<Argument> arguments_;  // of the launch that is issued
};

}  // namespace cavs::cuda
