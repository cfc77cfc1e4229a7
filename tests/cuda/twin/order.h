// The order of operations by streams, events and waits of the host: two operations that access the
// same device memory must be ordered, unless both read it, in whatever order they ran.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "memory.h"
#include "record.h"

namespace twin {

// For each line (a sequence, such as a stream), the number of operations that precede something.
using Clock = std::vector<uint32_t>;

// The clock of an operation. Number 0 has none, and precedes all others.
struct Place {
  uint32_t number = 0;
  Clock clock = {};  // includes the operation itself
};

class Order {
 public:
  explicit Order(const Memory& memory) : memory_(memory) {}
  // Switch checking on or off; all earlier operations have run and were waited for.
  void start(bool on);
  bool on() const { return on_; }
  // A new operation, after `before` and the host's waits, in a line: that of a stream, or of a
  // chain of a graph launched there.
  Place add(Clock before, std::pair<int, size_t> line);
  // Order everything after `clock` after `other` as well.
  void join(Clock& clock, const Place& other) const;
  void host_waited(const Place& place) { join(host_, place); }

  // The operation that runs now, and its line of the log.
  void run(const Place& place) { running_ = place; }
  void tell(std::shared_ptr<const Record> record);
  // It accesses memory: returns the operation it races with, or nothing. Other memory is ignored.
  std::string access(uintptr_t address, size_t bytes, bool write);

 private:
  struct Made {
    uint32_t line, count;  // its position in the line
    std::shared_ptr<const Record> record;
  };
  // For two bytes (the smallest stored type is bfloat16): the last writer, and later readers that
  // do not precede another one. Since few streams are in use at once, three suffice; the oldest is
  // dropped.
  struct Cell {
    uint32_t write, reads[3];
  };
  bool before_running(uint32_t number) const;
  std::string text(uint32_t number) const;
  std::string race(uint32_t other, uintptr_t address, bool write, bool wrote) const;

  const Memory& memory_;
  bool on_ = false;
  uint32_t first_ = 1;  // number of the first in `made_`
  std::vector<Made> made_;
  std::map<std::pair<int, size_t>, uint32_t> lines_;
  Clock host_;
  Place running_;
  Cell* cells_ = nullptr;  // for all device addresses, sparsely used
};

}  // namespace twin
