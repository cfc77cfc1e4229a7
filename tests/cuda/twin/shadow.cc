#include "shadow.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

#include "run.h"

namespace twin {

bool Mark::ordered_before(const Mark& later) const {
  if (launch != later.launch) return true;
  // Blocks are unordered between barriers of the grid, but each has its own shared memory.
  if (block != later.block) return shared;
  if (thread == later.thread || barriers != later.barriers) return true;
  return thread / kWarp == later.thread / kWarp && syncs < later.syncs;
}

void Shadow::begin(const Memory& memory, bool checked) {
  ++launch_;
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

Mark Shadow::note(Cell& cell, const Mark& mark) {
  const auto races = [&mark](const Mark& earlier) {
    return (earlier.bytes & mark.bytes) != 0 && !earlier.ordered_before(mark);
  };
  if (races(cell.write)) return cell.write;
  if (mark.write) {
    for (const Mark& read : cell.reads)
      if (races(read)) return read;
    const bool more = cell.write.launch == mark.launch && cell.write.same_moment(mark);
    const uint8_t before = more ? cell.write.bytes : 0;
    cell.write = mark;
    cell.write.bytes |= before;
  } else {
    const Mark& last = cell.reads[0];
    if (last.thread != mark.thread || last.block != mark.block) cell.reads[1] = last;
    cell.reads[0] = mark;
  }
  return {};
}

}  // namespace twin
