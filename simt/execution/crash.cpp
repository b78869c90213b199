/// A kernel that the processor stops, at a null pointer, say, ends the process, as any program: but
/// first it is told where it was.

#include <signal.h>
#include <unistd.h>

#include <cstring>

#include "lockstep/simt/execution/running_blocks.h"
#include "lockstep/simt/include/simt/language.h"

namespace simt::detail {
namespace {

thread_local const char* kernel_here = nullptr;  ///< this host thread runs it

// What a handler of signals may do is little: no memory, no locks.
void print(const char* text) {
  const ssize_t ignored = write(STDERR_FILENO, text, std::strlen(text));
  static_cast<void>(ignored);
}

void print(unsigned number) {
  char digits[12] = {};
  char* first = digits + sizeof digits - 1;
  do *--first = static_cast<char>('0' + number % 10);
  while (number /= 10);
  print(first);
}

void print(const char* what, unsigned x, unsigned y, unsigned z) {
  print(what), print(" ("), print(x), print(", "), print(y), print(", "), print(z), print(")");
}

/// SA_RESETHAND: the instruction is then tried again, and the signal does what it does by default.
void tell(int signal) {
  if (!kernel_here) return;
  print(signal == SIGFPE    ? "an impossible division"
        : signal == SIGSEGV ? "an access to no memory"
                            : "an access to memory that is gone");
  print(" in kernel "), print(kernel_here);
  print(", block", blockIdx.x, blockIdx.y, blockIdx.z);
  print(", thread", threadIdx.x, threadIdx.y, threadIdx.z), print("\n");
}

}  // namespace

CrashReports::CrashReports(const char* kernel) {
  kernel_here = kernel;
  for (const int signal : {SIGSEGV, SIGFPE, SIGBUS}) {
    struct sigaction now {};
    if (sigaction(signal, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) continue;
    now.sa_handler = tell;
    now.sa_flags = static_cast<int>(SA_RESETHAND);
    sigaction(signal, &now, nullptr);
  }
}

CrashReports::~CrashReports() { kernel_here = nullptr; }

}  // namespace simt::detail
