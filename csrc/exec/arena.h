// Memory of a run: aligned blocks that only grow, and the packing of lifetimes into one of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace cavs {

// 64-byte aligned memory that grows and never shrinks. Growing drops its contents.
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  Memory(Memory&& other) noexcept
      : data_(std::move(other.data_)), bytes_(std::exchange(other.bytes_, 0)) {}
  Memory& operator=(Memory&&) = delete;
  void reserve(size_t bytes);
  template <class T>
  T* as() const {
    return static_cast<T*>(data_.get());
  }
  size_t bytes() const { return bytes_; }
  // The current block; it stays alive with the result when this memory grows or is destroyed.
  template <class T>
  std::shared_ptr<T> share() const {
    return std::static_pointer_cast<T>(data_);
  }

 private:
  std::shared_ptr<void> data_;
  size_t bytes_ = 0;
};

// Memory for runs that are outstanding at once. Blocks that are given back are used again.
class MemoryPool {
 public:
  // The block returns to the pool with its last owner, from any thread; the pool may be gone then.
  std::shared_ptr<Memory> take();

 private:
  static constexpr size_t kMostFree = 4;
  struct Free {
    std::mutex mutex;
    std::vector<std::unique_ptr<Memory>> blocks;
  };
  std::shared_ptr<Free> free_ = std::make_shared<Free>();
};

// A value alive in steps [first, last], inclusive.
struct Lifetime {
  int32_t first, last;
  size_t bytes;
  size_t offset = 0;
};

// Assign every value an offset (a multiple of 64) so that values that are live at once do not
// overlap, largest first, into the tightest gap. Return the bytes needed.
size_t pack_lifetimes(std::vector<Lifetime>& values);
// Assign offsets one after the other, sharing no memory: for few bytes, where packing costs more
// than it saves.
size_t assign_disjoint_offsets(std::vector<Lifetime>& values);
// Maximum number of bytes live in one step, which no packing can undercut.
size_t peak_live(const std::vector<Lifetime>& values, int32_t steps);

}  // namespace cavs
