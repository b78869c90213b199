// Preloaded into ranks (LD_PRELOAD): SIGUSR2 lets a rank loop, as an endless computation does, and
// once more lets it go on. Its other threads, such as the watchdog's, are not stopped by that. And
// files take a while to write, so that a drill disturbs ranks in that, too.

#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>

namespace {

volatile sig_atomic_t calls = 0;

void loop_here(int) {
  calls = calls + 1;
  if (calls % 2 == 0) return;
  while (calls % 2 == 1) {
  }
}

[[gnu::constructor]] void begin() {
  if (!std::getenv("RANK")) return;  // a launcher
  struct sigaction action {};
  action.sa_handler = loop_here;
  action.sa_flags = SA_RESTART | SA_NODEFER;
  sigaction(SIGUSR2, &action, nullptr);
}

}  // namespace

extern "C" int fsync(int descriptor) {
  ::usleep(20'000);
  static auto* const real = reinterpret_cast<int (*)(int)>(::dlsym(RTLD_NEXT, "fsync"));
  return real(descriptor);
}
