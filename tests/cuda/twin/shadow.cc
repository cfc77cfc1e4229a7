#include "shadow.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

#include "run.h"

namespace twin {

bool Shadow::ordered(const Mark& earlier, const Mark& later) const {
  if (earlier.epoch < first_) return true;
  // Blocks are unordered between barriers of the grid, but each has its own shared memory.
  if (earlier.epoch != later.epoch)
    return later.shared || block_of(earlier.epoch) == block_of(later.epoch);
  if (earlier.thread == later.thread) return true;
  return earlier.thread / kWarp == later.thread / kWarp && earlier.syncs < later.syncs;
}

void Shadow::begin(const Memory& memory, bool checked) {
  pass_grid_barrier();
  region_ = memory.region();
  if (!checked || device_ != nullptr) return;
  const size_t bytes = memory.region_size() / 4 * sizeof(Cell);
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    std::fprintf(stderr, "cavs twin: no address space for checked kernels\n");
    std::abort();
  }
  device_ = static_cast<Cell*>(at);
}

Cell& Shadow::shared(size_t offset) {
  if (offset / 4 >= shared_.size()) shared_.resize(offset / 4 + 1024);
  return shared_[offset / 4];
}

void Shadow::pass_grid_barrier() {
  first_ = epoch_ + 1;
  blocks_.clear();
}

void Shadow::begin_epoch(uint32_t block) {
  ++epoch_;
  blocks_.push_back(block);
}

Mark Shadow::note(Cell& cell, const Mark& mark) const {
  const auto races = [&](const Mark& earlier) {
    return (earlier.bytes & mark.bytes) != 0 && !ordered(earlier, mark);
  };
  if (races(cell.write)) return cell.write;
  if (mark.write) {
    for (const Mark& read : cell.reads)
      if (races(read)) return read;
    const uint8_t before = cell.write.same_moment(mark) ? cell.write.bytes : 0;
    cell.write = mark;
    cell.write.bytes |= before;
  } else {
    const Mark& last = cell.reads[0];
    if (last.thread != mark.thread || last.epoch != mark.epoch) cell.reads[1] = last;
    cell.reads[0] = mark;
  }
  return {};
}

}  // namespace twin
