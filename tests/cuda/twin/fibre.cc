#include "fibre.h"

#include <sys/mman.h>

#include <cstring>
#include <new>

#if defined(__x86_64__)
asm(R"(
.text
.globl twin_switch
.hidden twin_switch
.type twin_switch, @function
twin_switch:
  endbr64
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size twin_switch, .-twin_switch
)");
static constexpr int kWords = 8, kEntry = 6;  // six registers, the return address, alignment
#elif defined(__aarch64__)
asm(R"(
.text
.globl twin_switch
.hidden twin_switch
.type twin_switch, @function
twin_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size twin_switch, .-twin_switch
)");
static constexpr int kWords = 20, kEntry = 11;  // x30 is the return address
#else
#error "The twin switches stacks on x86-64 and aarch64 only."
#endif

namespace twin {

namespace {
constexpr size_t kGap = 64 << 10;  // the largest usual page size
constexpr size_t kStack = 64 << 10;
}  // namespace

void* Stacks::take(void (*main)()) {
  if (used_ == stacks_.size()) {
    void* memory = mmap(nullptr, kGap + kStack, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, kGap, PROT_NONE) != 0) throw std::bad_alloc();
    stacks_.push_back(static_cast<char*>(memory));
  }
  // Tops at different offsets within a page, or the stacks of a block would map to the same cache
  // sets.
  const size_t colour = used_ * 1088 % (16 << 10);
  void** words = reinterpret_cast<void**>(stacks_[used_++] + kGap + kStack - colour) - kWords;
  std::memset(words, 0, kWords * sizeof(void*));
  words[kEntry] = reinterpret_cast<void*>(main);
  return words;
}

}  // namespace twin
