// Staging of a batch: features, index arrays and slots of tables go to the device in one copy from
// page-locked memory, while the batch before runs.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "cuda/driver/device.h"
#include "cuda/driver/event.h"
#include "cuda/memory/allocation.h"

namespace cavs::cuda {

// A double buffer of items, which are gathered on the host and copied together. Two batches use the
// buffers in turn, so that one is uploaded while kernels read the other.
class Staging {
 public:
  explicit Staging(std::shared_ptr<Device> device);

  // Start the next batch, in the other buffer.
  void clear();
  // Return the number of the item. `from` must stay valid until upload().
  int32_t add(const void* from, size_t bytes);
  template <class T>
  int32_t add(std::span<const T> values) {
    return add(values.data(), values.size_bytes());
  }
  // Allocate room for all items; their addresses are valid from here on.
  void reserve();
  // Copy all items; lane 0 waits for the copy.
  void upload();
  // Mark the point on lane 0 after which nothing reads the items.
  void mark_read() { current().read.record(); }
  // Address of an item; null if it is empty.
  template <class T>
  T* at(int32_t item) const {
    return items_[item].from == nullptr
               ? nullptr
               : reinterpret_cast<T*>(current().memory.at(items_[item].offset));
  }
  size_t bytes() const { return bytes_; }
  int parity() const { return parity_; }  // the current buffer, 0 or 1
  size_t device_bytes() const { return buffers_[0].memory.bytes() + buffers_[1].memory.bytes(); }
  size_t host_bytes() const { return buffers_[0].host.bytes() + buffers_[1].host.bytes(); }

 private:
  struct Item {
    const void* from;
    size_t bytes, offset;
  };
  struct Buffer {
    explicit Buffer(const std::shared_ptr<Device>& device)
        : host(device), memory(device), copied(device, false), read(device, false) {}
    PinnedMemory host;
    DeviceMemory memory;
    Event copied, read;  // last copy into `memory`; last read by a kernel
  };
  Buffer& current() { return buffers_[parity_]; }
  const Buffer& current() const { return buffers_[parity_]; }

  std::shared_ptr<Device> device_;
  std::array<Buffer, 2> buffers_;
  int parity_ = 0;
  std::vector<Item> items_;
  size_t bytes_ = 0;
};

}  // namespace cavs::cuda
