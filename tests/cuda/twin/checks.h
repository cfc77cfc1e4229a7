// Callbacks of g++'s sanitizers in kernels. Those for undefined behaviour are on in every module,
// since a device does not report a wrong index, a misaligned vector or an overflowing integer.
// Those for threads are on in checked modules, where the driver checks every access.
#pragma once

#define TWIN_CALLED __attribute__((visibility("hidden"), used, no_sanitize("thread", "undefined")))
#define TWIN_HERE __builtin_return_address(0)

extern "C" {

#define TWIN_UNDEFINED(name, text)                                                     \
  TWIN_CALLED inline void __ubsan_handle_##name(void*, unsigned long, unsigned long) { \
    twin_hooks.fault(719, text, TWIN_HERE);                                            \
  }
TWIN_UNDEFINED(out_of_bounds, "an index outside of its array")
TWIN_UNDEFINED(shift_out_of_bounds, "a shift by more bits than there are")
TWIN_UNDEFINED(divrem_overflow, "an integer is divided by zero")
TWIN_UNDEFINED(add_overflow, "a sum that overflows its integer")
TWIN_UNDEFINED(sub_overflow, "a difference that overflows its integer")
TWIN_UNDEFINED(mul_overflow, "a product that overflows its integer")
TWIN_UNDEFINED(negate_overflow, "a negation that overflows its integer")
TWIN_CALLED inline void __ubsan_handle_type_mismatch_v1(void*, unsigned long) {
  twin_hooks.fault(716, "a value that is not aligned as its type", TWIN_HERE);
}

#if TWIN_CHECKED
TWIN_CALLED inline void __tsan_init() {}
#define TWIN_ACCESS(name, bytes)                                        \
  TWIN_CALLED inline void __tsan_read##name(void* address) {            \
    twin_hooks.access(address, bytes, false, TWIN_HERE);                \
  }                                                                     \
  TWIN_CALLED inline void __tsan_write##name(void* address) {           \
    twin_hooks.access(address, bytes, true, TWIN_HERE);                 \
  }                                                                     \
  TWIN_CALLED inline void __tsan_unaligned_read##name(void* address) {  \
    twin_hooks.access(address, bytes, false, TWIN_HERE);                \
  }                                                                     \
  TWIN_CALLED inline void __tsan_unaligned_write##name(void* address) { \
    twin_hooks.access(address, bytes, true, TWIN_HERE);                 \
  }
TWIN_ACCESS(1, 1)
TWIN_ACCESS(2, 2)
TWIN_ACCESS(4, 4)
TWIN_ACCESS(8, 8)
TWIN_ACCESS(16, 16)
TWIN_CALLED inline void __tsan_read_range(void* address, unsigned long bytes) {
  twin_hooks.access(address, bytes, false, TWIN_HERE);
}
TWIN_CALLED inline void __tsan_write_range(void* address, unsigned long bytes) {
  twin_hooks.access(address, bytes, true, TWIN_HERE);
}
#endif

}  // extern "C"
