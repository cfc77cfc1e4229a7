#include "signals.h"

#include <pthread.h>
#include <ucontext.h>

#include "run.h"

namespace twin {

namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE};
constexpr size_t kCount = sizeof kSignals / sizeof kSignals[0];

struct sigaction old_actions[kCount];
pthread_t runner;
alignas(16) char stack_memory[64 << 10];  // for kernels with a stack overflow

const void* instruction(const void* context) {
  const auto& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  return reinterpret_cast<const void*>(machine.gregs[REG_RIP]);
#else
  return reinterpret_cast<const void*>(machine.pc);
#endif
}

// Return to the scheduler for good: the thread's stack is abandoned.
void handle(int signal, siginfo_t* info, void* context) {
  if (!pthread_equal(pthread_self(), runner) || !run_->inside()) {
    for (size_t i = 0; i < kCount; ++i)
      if (kSignals[i] == signal) sigaction(signal, &old_actions[i], nullptr);
    return;  // the access is repeated with the previous handler
  }
  const void* const at = instruction(context);
  if (signal == SIGFPE) run_->fail(kLaunchFailed, "an integer is divided by zero", at);
  if (info->si_code == SI_KERNEL)  // x86 reports no address
    run_->fail(kMisalignedAddress, "a vector that is not aligned, or an address far out", at);
  run_->fail(kIllegalAddress,
             "access to " + run_->memory().describe(reinterpret_cast<uintptr_t>(info->si_addr)),
             at);
}

}  // namespace

Signals::Signals() {
  runner = pthread_self();
  stack_t stack = {};
  stack.ss_sp = stack_memory;
  stack.ss_size = sizeof stack_memory;
  sigaltstack(&stack, &old_stack_);
  struct sigaction action = {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kCount; ++i) sigaction(kSignals[i], &action, &old_actions[i]);
}

Signals::~Signals() {
  for (size_t i = 0; i < kCount; ++i) sigaction(kSignals[i], &old_actions[i], nullptr);
  sigaltstack(&old_stack_, nullptr);
}

}  // namespace twin
