#include "lockstep/dist/output.h"

#include <unistd.h>

#include <cerrno>

namespace lockstep::dist {

void write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace lockstep::dist
