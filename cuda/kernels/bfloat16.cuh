// bfloat16, the upper half of a float: a storage type, converted to float for arithmetic.
#pragma once

struct bfloat16 {
  unsigned short bits;
};

__device__ inline float widened(bfloat16 x) {
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}

// Round to the nearest value; ties go to even.
__device__ inline bfloat16 narrowed(float x) {
  bfloat16 y;
#ifdef CAVS_TWIN
  const unsigned bits = __float_as_uint(x);
  y.bits = x != x ? 0x7fff : static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#else
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#endif
  return y;
}
