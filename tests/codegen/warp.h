// Enough of the device language for generated kernels: the threads of a block take turns, and
// change where a warp exchanges values.
#pragma once

#include <ucontext.h>

#include <cmath>
#include <functional>
#include <vector>

#define CAVS_TWIN
#define __global__
#define __device__
#define __launch_bounds__(n)

struct Index {
  unsigned x;
};
static Index threadIdx, blockIdx, blockDim, gridDim;

namespace warp {

struct Thread {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(1 << 16);
  unsigned long long given[2];  // by turns: what is read may be given anew before all have read it
  int turn = 0;
  bool done = false;
};
static std::vector<Thread> threads;
static ucontext_t home;
static std::function<void()> kernel;

static void begin() {
  kernel();
  threads[threadIdx.x].done = true;
}
static void give_way() {
  const unsigned me = threadIdx.x;
  swapcontext(&threads[me].context, &home);
}
static void run_block() {
  threads = std::vector<Thread>(blockDim.x);
  for (Thread& t : threads) {
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = t.stack.data();
    t.context.uc_stack.ss_size = t.stack.size();
    t.context.uc_link = &home;
    makecontext(&t.context, begin, 0);
  }
  for (bool any = true; any;) {
    any = false;
    for (unsigned t = 0; t < blockDim.x; ++t) {
      if (threads[t].done) continue;
      threadIdx.x = t;
      any = true;
      swapcontext(&home, &threads[t].context);
    }
  }
}
template <class F>
void launch(unsigned blocks, unsigned size, F f) {
  kernel = f;
  gridDim.x = blocks;
  blockDim.x = size;
  for (unsigned b = 0; b < blocks; ++b) {
    blockIdx.x = b;
    run_block();
  }
}

}  // namespace warp

template <class T>
T __shfl_xor_sync(unsigned, T value, int other) {
  warp::Thread& me = warp::threads[threadIdx.x];
  const int turn = me.turn;
  me.turn ^= 1;
  __builtin_memcpy(&me.given[turn], &value, sizeof(T));
  warp::give_way();
  __builtin_memcpy(&value, &warp::threads[threadIdx.x ^ other].given[turn], sizeof(T));
  return value;
}
inline void __syncwarp() { warp::give_way(); }
