// The interface between a kernel module compiled by the twin and the twin's driver.
#pragma once

namespace twin {

struct Index {
  unsigned x, y, z;
};

struct Parameter {
  char kind;  // layout: p pointer, i signed, u unsigned, f floating, s struct
  unsigned size;
};

struct Kernel {
  const char* name;
  void (*run)(void** parameters);  // runs one thread
  const Parameter* parameters;
  int count;
  int max_threads;  // from __launch_bounds__, or 0
};

enum class WarpOp : int { kSync, kGet, kUp, kDown, kXor, kBallot, kGather };

// Calls of a running thread to the driver. Each may switch to another thread of the block.
struct Hooks {
  void (*barrier)(int line, bool grid);  // grid: a barrier of all blocks
  // In: the bits of the lane's value; out: those of the result. For kGather `bits` is the address
  // of the lane's `size` bytes, and `all` receives 32 * size bytes, those of every lane.
  unsigned long long (*warp)(WarpOp op, unsigned mask, int line, unsigned long long bits, int lane,
                             int width, void* all, unsigned size);
  // End the launch with a CUresult. at: the instruction at fault.
  void (*fault)(int code, const char* text, const void* at);
  // In checked modules: the thread is about to read or write.
  void (*access)(const void* address, unsigned long bytes, bool write, const void* at);
};

struct Module {
  const Kernel* kernels;
  int count;
  Index *thread, *block, *block_dim, *grid_dim;
  Hooks* hooks;
  bool checked;               // every access calls Hooks::access
  char* image;                // start of the module; other variables precede the shared ones
  char *shared, *shared_end;  // all __shared__ variables
  char* dynamic;              // the extern __shared__ arrays, or nullptr
  unsigned dynamic_size;
  int architecture;  // its target, such as 90, or 0 for any device
};

}  // namespace twin
