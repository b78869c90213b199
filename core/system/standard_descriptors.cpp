#include "lockstep/core/system/standard_descriptors.h"

#include <fcntl.h>
#include <unistd.h>

#include <initializer_list>

namespace lockstep {

bool open_standard_descriptors() {
  bool no_stdout = false;
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(number, F_GETFD) >= 0) continue;
    no_stdout |= number == STDOUT_FILENO;
    // open() takes the lowest free number, and those below are taken. Without a /dev/null, go on.
    [[maybe_unused]] const int opened = ::open("/dev/null", O_RDWR);
  }
  return no_stdout;
}

}  // namespace lockstep
