// Picks the kernel table; see kernels.h.
