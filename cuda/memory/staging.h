// What a batch brings to the device: features, index arrays, slots of tables. One copy from
// page-locked memory, while the batch before runs.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "cuda/driver/device.h"
#include "cuda/kernels/arguments.h"
#include "exec/bind.h"
#include "exec/tables.h"

namespace cavs::cuda {

// Pieces of memory side by side: gathered on the host, then copied together. Two batches take turns
// on two places, so that one goes up while kernels read the other.
class Staging {
 public:
  explicit Staging(std::shared_ptr<Device> device);

  // For the next batch, in the other place.
  void clear();
  // The piece's number. `from` must stay until upload().
  int32_t add(const void* from, size_t bytes);
  template <class T>
  int32_t add(std::span<const T> values) {
    return add(values.data(), values.size_bytes());
  }
  // Room for all pieces; their addresses are known from here on.
  void reserve();
  // Lane 0 goes on once the pieces are there.
  void upload();
  // Lane 0 has been given all that reads them.
  void read() { place().read.record(); }
  // Null for a piece of nothing.
  template <class T>
  T* at(int32_t piece) const {
    return pieces_[piece].from == nullptr
               ? nullptr
               : reinterpret_cast<T*>(place().memory.at(pieces_[piece].offset));
  }
  size_t bytes() const { return bytes_; }
  int present() const { return present_; }  // the place, 0 or 1
  size_t device_bytes() const { return places_[0].memory.bytes() + places_[1].memory.bytes(); }
  size_t host_bytes() const { return places_[0].host.bytes() + places_[1].host.bytes(); }

 private:
  struct Copied {
    const void* from;
    size_t bytes, offset;
  };
  struct Place {
    explicit Place(const std::shared_ptr<Device>& device)
        : host(device), memory(device), copied(device, false), read(device, false) {}
    PinnedMemory host;
    DeviceMemory memory;
    Event copied, read;  // the last copy into `memory`, the last kernel that reads it
  };
  Place& place() { return places_[present_]; }
  const Place& place() const { return places_[present_]; }

  std::shared_ptr<Device> device_;
  std::array<Place, 2> places_;
  int present_ = 0;
  std::vector<Copied> pieces_;
  size_t bytes_ = 0;
};

// The index arrays a program reads, each once, and where they lie on the device.
class DeviceArrays {
 public:
  DeviceArrays(const Program& program, size_t sources, size_t loads);

  // Adds the arrays of the batch.
  void stage(const Schedule& schedule, const IndexFeatures& features, Staging& staging);
  void resolve(const Staging& staging);

  struct Pair {
    const int32_t *index = nullptr, *offsets = nullptr;
  };
  // Of a source or a load, numbered as in BoundProgram; of an instruction: labels, or row numbers
  // of one that draws random numbers (null: rows are numbered as they stand).
  Pair of_source(size_t i) const { return pair(source_[i]); }
  Pair of_load(size_t i) const { return pair(load_[i]); }
  const int32_t* of_instruction(size_t i) const { return pair(instruction_[i]).index; }

 private:
  struct Use {
    Operand operand;
    Space space;
    int32_t index = -1, offsets = -1;  // pieces of the staging
    Pair pair;
  };
  int32_t use(const Operand& o, Space space);
  Pair pair(int32_t use) const { return use < 0 ? Pair{} : uses_[use].pair; }

  std::vector<Use> uses_;
  std::vector<int32_t> source_, load_, instruction_;  // uses, -1: none
};

// Rows that one lookup adds into the slots of a table: all of them, or those of one task.
struct SlotRows {
  int32_t task;  // -1: all
  std::vector<int32_t> offsets, rows, slots;
  int32_t at_offsets = -1, at_rows = -1, at_slots = -1;  // pieces
};

// The rows of `lookup` that belong to rows [begin, end), sorted by slot.
template <class T>
SlotRows slots_of_task(const Table& table, const Lookup& lookup, const Source<T>& values,
                       int32_t task, RowRange rows);

}  // namespace cavs::cuda
