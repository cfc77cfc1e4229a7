// What a kernel module compiled by the twin and the twin's driver know of each other.
#pragma once

namespace twin {

struct Index {
  unsigned x, y, z;
};

struct Parameter {
  char kind;  // p pointer, i signed, u unsigned, f floating, s struct
  unsigned size;
};

struct Kernel {
  const char* name;
  void (*run)(void** parameters);  // one thread
  const Parameter* parameters;
  int count;
  int max_threads;  // of __launch_bounds__; 0: none given
};

enum class WarpOp : int { kSync, kGet, kUp, kDown, kXor, kBallot, kGather };

// What a running thread asks of the driver. Each call may switch to another thread of the block.
struct Hooks {
  void (*barrier)(int line, bool grid);  // grid: of all blocks
  // In: the bits of the lane's value; out: of the result. For kGather `bits` is the address of the
  // lane's `size` bytes and `all` that of 32 * size bytes which receive those of every lane.
  unsigned long long (*warp)(WarpOp op, unsigned mask, int line, unsigned long long bits, int lane,
                             int width, void* all, unsigned size);
  // Ends the launch with a CUresult. at: the instruction to blame.
  void (*fault)(int code, const char* text, const void* at);
  // Of checked modules: the thread is about to read or write.
  void (*access)(const void* address, unsigned long bytes, bool write, const void* at);
};

struct Module {
  const Kernel* kernels;
  int count;
  Index *thread, *block, *block_dim, *grid_dim;
  Hooks* hooks;
  bool checked;               // every access calls Hooks::access
  char* image;                // where the module starts; its other variables lie before the shared
  char *shared, *shared_end;  // all __shared__ variables
  char* dynamic;              // what extern __shared__ arrays stand for; nullptr: there is none
  unsigned dynamic_size;
  int architecture;  // whose code it stands for, 90; 0: that of any device
};

}  // namespace twin
