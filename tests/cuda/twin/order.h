// Which operations come before which, by streams, events and waits of the host: two that touch the
// same memory of the device, one of them to write, must be so ordered, in whatever order they run.
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

// How many operations of each line (one after the other, as in a stream) come before something.
using Clock = std::vector<uint32_t>;

// An operation's place; of number 0 it has none, and comes before all that have one.
struct Place {
  uint32_t number = 0;
  Clock clock = {};  // the operation itself counts
};

class Order {
 public:
  explicit Order(const Memory& memory) : memory_(memory) {}
  // From here on operations are ordered, or are not; all before have run, and were waited for.
  void start(bool on);
  bool on() const { return on_; }
  // A new operation, after what `before` and the host's own waits say, in a line: that of a stream,
  // or of a chain of a graph that is launched there.
  Place add(Clock before, std::pair<int, size_t> line);
  // What comes after `clock` comes after `other` too.
  void join(Clock& clock, const Place& other) const;
  void host_waited(const Place& place) { join(host_, place); }

  // What runs now, and its line of the log.
  void run(const Place& place) { running_ = place; }
  void tell(std::shared_ptr<const Record> record);
  // It touches memory: what it races with, or nothing. What is no device memory is let pass.
  std::string access(uintptr_t address, size_t bytes, bool write);

 private:
  struct Made {
    uint32_t line, count;  // its place in the line
    std::shared_ptr<const Record> record;
  };
  // Of two bytes (the smallest value stored is one of bfloat16): who wrote them last, and who has
  // read them since, but for those that come before another of them. So few streams are at work at
  // once that three suffice; of more the oldest is forgotten.
  struct Cell {
    uint32_t write, reads[3];
  };
  bool before_running(uint32_t number) const;
  std::string text(uint32_t number) const;
  std::string race(uint32_t other, uintptr_t address, bool write, bool wrote) const;

  const Memory& memory_;
  bool on_ = false;
  uint32_t first_ = 1;  // of `made_`
  std::vector<Made> made_;
  std::map<std::pair<int, size_t>, uint32_t> lines_;
  Clock host_;
  Place running_;
  Cell* cells_ = nullptr;  // for the whole region of device addresses, of which little is touched
};

}  // namespace twin
