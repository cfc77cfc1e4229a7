#include "order.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace twin {

namespace {
constexpr size_t kCellBytes = 2;

void later(Clock& clock, const Clock& other) {
  if (clock.size() < other.size()) clock.resize(other.size(), 0);
  for (size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

}  // namespace

void Order::start(bool on) {
  on_ = on;
  first_ += static_cast<uint32_t>(made_.size());
  made_.clear();
  lines_.clear();
  host_.clear();
  running_ = {};
  if (!on || cells_ != nullptr) return;
  const size_t bytes = memory_.region_size() / kCellBytes * sizeof(Cell);
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    std::fprintf(stderr, "cavs twin: no address space for the order of operations\n");
    std::abort();
  }
  cells_ = static_cast<Cell*>(at);
}

void Order::join(Clock& clock, const Place& other) const {
  if (other.number >= first_) later(clock, other.clock);
}

Place Order::add(Clock before, std::pair<int, size_t> name) {
  Place place = {first_ + static_cast<uint32_t>(made_.size()), std::move(before)};
  later(place.clock, host_);
  const auto line = lines_.try_emplace(name, static_cast<uint32_t>(lines_.size())).first->second;
  if (place.clock.size() <= line) place.clock.resize(line + 1, 0);
  made_.push_back({line, ++place.clock[line], nullptr});
  return place;
}

void Order::tell(std::shared_ptr<const Record> record) {
  if (running_.number >= first_) made_[running_.number - first_].record = std::move(record);
}

bool Order::before_running(uint32_t number) const {
  if (number < first_ || number == running_.number) return true;
  const Made& other = made_[number - first_];
  return other.line < running_.clock.size() && other.count <= running_.clock[other.line];
}

std::string Order::text(uint32_t number) const {
  const auto& record = made_[number - first_].record;
  if (record == nullptr) return "an operation";
  return record->kind + (record->name.empty() ? "" : " " + record->name) + " on stream " +
         std::to_string(record->stream);
}

std::string Order::race(uint32_t other, uintptr_t address, bool write, bool wrote) const {
  return "a race of streams: " + text(running_.number) + (write ? " writes " : " reads ") +
         memory_.describe(address) + "; no event and no wait orders it after " + text(other) +
         ", which " + (wrote ? "wrote" : "read") + " it";
}

std::string Order::access(uintptr_t address, size_t bytes, bool write) {
  if (running_.number < first_ || bytes == 0 || !memory_.in_region(address)) return {};
  const uintptr_t end = address + bytes;
  for (uintptr_t at = address / kCellBytes * kCellBytes; at < end; at += kCellBytes) {
    Cell& cell = cells_[(at - memory_.region()) / kCellBytes];
    if (!before_running(cell.write)) return race(cell.write, at, write, true);
    if (write) {
      for (const uint32_t read : cell.reads)
        if (!before_running(read)) return race(read, at, true, false);
      cell = {running_.number, {}};
      continue;
    }
    const auto replaced = std::find_if(std::begin(cell.reads), std::end(cell.reads),
                                       [this](uint32_t read) { return before_running(read); });
    *(replaced == std::end(cell.reads) ? cell.reads : replaced) = running_.number;
  }
  return {};
}

}  // namespace twin
