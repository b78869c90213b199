#include "contender.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "lockstep/core/error.h"
#include "lockstep/tools/temporary_folder.h"

namespace bench {

using lockstep::check;
using lockstep::Error;
using lockstep::dist::Descriptor;

// Once it is ready, all ranks have opened their pipes, and the folder is not needed any more.
Contender::Contender(Label label, int ranks, std::vector<std::string> command)
    : label_(std::move(label)) {
  const lockstep::cli::TemporaryFolder folder("lockstep-bench");
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string path = fmt::format("{}/{}", folder.path(), rank);
    // Opened for both, so that this does not wait for the rank. Nobody else can write to it: when
    // this process ends, however, the rank reads the end of its input.
    Descriptor turns(::mkfifo(path.c_str(), 0600) == 0 ? ::open(path.c_str(), O_RDWR | O_CLOEXEC)
                                                       : -1);
    check<Error>(static_cast<bool>(turns), "cannot make {}: {}", path, std::strerror(errno));
    turns_.push_back(std::move(turns));
  }
  command.push_back(folder.path());
  peer_ = std::make_unique<Peer>(command);
}

void Contender::tell(const std::string& what) {
  for (const Descriptor& turn : turns_) {
    const bool told =
        ::write(turn.get(), what.data(), what.size()) == static_cast<ssize_t>(what.size());
    check<Error>(told, "{}: cannot be told anything: {}", name(), std::strerror(errno));
  }
}

void Contender::verify(std::int64_t bytes) {
  const std::int64_t count = bytes / static_cast<std::int64_t>(sizeof(float));
  tell(fmt::format("verify {}\n", count));
  const std::string answer = peer_->hear("verified");
  check<Error>(answer == std::to_string(count), "{} has verified {} elements instead of {}", name(),
               answer, count);
}

double Contender::time(std::int64_t calls) {
  tell(fmt::format("calls {}\n", calls));
  return std::strtod(peer_->hear("us").c_str(), nullptr);
}

}  // namespace bench
