// Barriers and operations of a warp.

#include <algorithm>
#include <cstring>

#include "run.h"

namespace twin {

namespace {
std::string barrier_text(bool grid) { return grid ? "twin::grid_barrier()" : "__syncthreads()"; }
}  // namespace

void Run::barrier(int line, bool grid) {
  if (grid && !launch_.cooperative)
    fail(kLaunchFailed,
         "line " + std::to_string(line) + ": a grid barrier in a launch that is not cooperative");
  if (arrived_ == 0) {
    barrier_line_ = line;
    barrier_of_grid_ = grid;
  }
  if (line != barrier_line_ || grid != barrier_of_grid_)
    fail(kLaunchFailed,
         barrier_text(grid) + " in line " + std::to_string(line) + ", while other threads wait " +
             (grid == barrier_of_grid_ ? "in that of line "
                                       : "at " + barrier_text(barrier_of_grid_) + " in line ") +
             std::to_string(barrier_line_));
  const bool complete = ++arrived_ == size();
  if (complete) {
    arrived_ = 0;
    shadow_.begin_epoch(block_);
    at_grid_barrier_ = grid;
    if (!grid)
      for (unsigned t = size(); t-- > 0;) release(t);  // the last released runs first
  }
  leave(complete && !grid ? Wait::kNone : Wait::kBarrier, line);
}

// True if a lane is known to be missing, so that an arriving lane need not check all of them. Only
// the latest lane is checked.
bool Run::awaited(unsigned first, const Thread& me) {
  Thread& warp = threads_[first];
  const auto expected = [&](unsigned lane) {
    const unsigned t = first + lane;
    return (me.mask >> lane & 1u) && t != running_ && t < size() && !threads_[t].finished;
  };
  const unsigned missing = warp.missing, latest = warp.latest;
  warp.latest = static_cast<uint8_t>(running_ - first);
  return expected(missing) && threads_[first + missing].wait != Wait::kWarp && expected(latest) &&
         threads_[first + latest].wait == Wait::kWarp && threads_[first + latest].waits_with(me);
}

// True if all lanes of the mask wait; a fault if one never will, or waits for something else.
bool Run::all_wait(unsigned first, const Thread& me) {
  bool complete = true;
  for (unsigned i = 0; i < kWarp; ++i) {
    if (!(me.mask >> i & 1u)) continue;
    const unsigned t = first + i;
    if (t >= size() || threads_[t].finished)
      fail(kLaunchFailed, "line " + std::to_string(me.line) + ": a warp operation waits for lane " +
                              std::to_string(i) + ", which " +
                              (t >= size() ? "is not in the block" : "has left the kernel"));
    if (threads_[t].wait != Wait::kWarp) {
      complete = false;
      threads_[first].missing = static_cast<uint8_t>(i);
    } else if (!threads_[t].waits_with(me)) {
      fail(kLaunchFailed, "lanes of one warp wait in different warp operations: lines " +
                              std::to_string(me.line) + " and " + std::to_string(threads_[t].line));
    }
  }
  return complete;
}

uint64_t Run::warp(WarpOp op, unsigned mask, int line, uint64_t bits, int lane, int width,
                   void* all, unsigned size) {
  const unsigned first = running_ / kWarp * kWarp;
  Thread& me = threads_[running_];
  if (!(mask >> (running_ - first) & 1u))
    fail(kLaunchFailed, "line " + std::to_string(line) +
                            ": the mask of a warp operation leaves out "
                            "the lane that calls it");
  if (width <= 0 || width > 32 || (width & (width - 1)) != 0)
    fail(kLaunchFailed,
         "line " + std::to_string(line) + ": a shuffle over " + std::to_string(width) + " lanes");
  me.op = op, me.mask = mask, me.lane = lane, me.width = width, me.size = size, me.bits = bits;
  me.all = all, me.line = line;
  me.wait = Wait::kWarp;
  const bool complete = !awaited(first, me) && all_wait(first, me);
  if (complete) complete_warp(first, mask);
  leave(complete ? Wait::kNone : Wait::kWarp, line);
  return me.bits;
}

void Run::complete_warp(unsigned first, unsigned mask) {
  uint64_t values[kWarp] = {};
  unsigned ballot = 0;
  for (unsigned i = 0; i < kWarp; ++i) {
    if (!(mask >> i & 1u)) {
      poison(&values[i], sizeof values[i]);  // values of lanes outside of the mask are undefined
      continue;
    }
    values[i] = threads_[first + i].bits;
    ballot |= static_cast<unsigned>(values[i] & 1u) << i;
  }
  const void* gathered = nullptr;
  for (unsigned i = kWarp; i-- > 0;) {  // the last released runs first
    if (!(mask >> i & 1u)) continue;
    Thread& thread = threads_[first + i];
    const int low = static_cast<int>(i) & ~(thread.width - 1), high = low + thread.width;
    int from = static_cast<int>(i);
    switch (thread.op) {
      case WarpOp::kSync:
        ++thread.syncs;
        break;
      case WarpOp::kGet:
        from = low + (thread.lane & (thread.width - 1));
        break;
      case WarpOp::kUp:
        from -= thread.lane;
        break;
      case WarpOp::kDown:
        from += thread.lane;
        break;
      case WarpOp::kXor:
        from ^= thread.lane;
        break;
      case WarpOp::kBallot:
        break;
      case WarpOp::kGather:
        if (gathered) {
          std::memcpy(thread.all, gathered, kWarp * thread.size);
          break;
        }
        for (unsigned j = 0; j < kWarp; ++j)
          std::memcpy(static_cast<char*>(thread.all) + j * thread.size,
                      reinterpret_cast<const void*>(values[j]), thread.size);
        gathered = thread.all;
        break;
    }
    const bool outside = thread.op == WarpOp::kXor ? from >= high : from < low || from >= high;
    if (outside || from < 0 || from >= 32) from = static_cast<int>(i);
    thread.bits = thread.op == WarpOp::kBallot ? ballot : values[from];
    release(first + i);
  }
}

std::string Run::stuck() const {
  const auto waits = [this](Wait wait) {
    return std::find_if(threads_.begin(), threads_.end(),
                        [wait](const Thread& t) { return t.wait == wait && !t.finished; });
  };
  const auto number = [this](auto at) {
    return thread_text(static_cast<unsigned>(at - threads_.begin()));
  };
  const auto barrier = waits(Wait::kBarrier), warp = waits(Wait::kWarp);
  const auto gone =
      std::find_if(threads_.begin(), threads_.end(), [](const Thread& t) { return t.finished; });
  std::string text;
  if (barrier != threads_.end())
    text += number(barrier) + " waits at " + barrier_text(barrier_of_grid_) + " in line " +
            std::to_string(barrier->line);
  if (warp != threads_.end())
    text += (text.empty() ? "" : ", ") + number(warp) + " waits in a warp operation in line " +
            std::to_string(warp->line);
  if (gone != threads_.end()) text += ", " + number(gone) + " has left the kernel";
  return text;
}

}  // namespace twin
