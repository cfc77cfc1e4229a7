// Device work of a batch, recorded for comparison with that of an earlier batch, then issued
// command by command or captured as a graph.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "cuda/driver/driver.h"

namespace cavs::cuda {

class Device;

// Grid size in blocks and dynamic shared memory in bytes. Cooperative: all blocks are resident.
struct Grid {
  unsigned x = 1, y = 1, z = 1, shared = 0;
  bool cooperative = false;
};

// An argument of a kernel.
struct Argument {
  const void* at;
  size_t bytes;
};

// True if equal values of a type have equal bytes. Floating-point numbers count, although 0 and -0
// differ: the only harm is a missed match.
template <class A>
constexpr bool kPlainBytes =
    std::has_unique_object_representations_v<A> || std::is_floating_point_v<A>;

// Work that a library gives to `stream`, the stream of `lane`, with a copy of the recorded `data`.
using Call = void (*)(const void* data, int lane, Handle stream);

class Commands {
 public:
  void clear();
  size_t size() const { return size_; }
  // The recordable operations of a Device.
  void launch(int lane, Handle function, Grid grid, std::span<const Argument> arguments,
              unsigned threads);
  void zero(int lane, Address at, size_t bytes);
  void fork();
  void join();
  void call(int lane, Call call, const void* data, size_t bytes);

  // Run the commands on the device, in order, each on its lane.
  void issue(Device& device) const;
  // Equality byte by byte: equal commands do the same work.
  bool operator==(const Commands& other) const { return words_ == other.words_; }

 private:
  enum class Type : uint8_t { kLaunch, kZero, kFork, kJoin, kCall };
  uint64_t* add(Type type, int lane, size_t words);
  void issue_launch(Device& device, const uint64_t* at, const uint64_t* end) const;

  // Each command is a head (type, lane, number of words that follow) and its operands, padded with
  // zeros to whole words.
  std::vector<uint64_t> words_;
  size_t size_ = 0;
  mutable std::vector<Argument> arguments_;  // scratch for issue_launch
};

}  // namespace cavs::cuda
