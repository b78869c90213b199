#include "lockstep/dist/rendezvous/descriptor.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>

#include "lockstep/core/error.h"

namespace lockstep::dist {

int checked(int result, std::string_view what) {
  if (result < 0) fail<Error>("[launch] cannot {}: {}", what, std::strerror(errno));
  return result;
}

Pipe make_pipe() {
  int ends[2];
  checked(pipe2(ends, O_CLOEXEC), "make a pipe");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

}  // namespace lockstep::dist
