// Kernels of one instruction set; see kernels.h.
