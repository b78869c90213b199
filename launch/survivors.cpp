#include "lockstep/launch/survivors.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <utility>

namespace lockstep::launch {

namespace {

std::string name_of_signal(int number) {
  const char* const name = sigabbrev_np(number);
  return name ? fmt::format("SIG{}", name) : fmt::format("signal {}", number);
}

}  // namespace

Survivors::Survivors(int ranks, std::string rendezvous)
    : rendezvous_(std::move(rendezvous)),
      file_(dist::checked(memfd_create("lockstep-generations", MFD_CLOEXEC), "make a memory file")),
      ranks_(dist::index(ranks)) {}

bool Survivors::others_do(std::size_t r) const {
  for (std::size_t other = 0; other < ranks_.size(); ++other)
    if (other != r && !lost(other)) return true;
  return false;
}

void Survivors::lose(std::size_t r, int signal) {
  ranks_[r].state = State::lost;
  publish();
  const auto left = generation_.members.size();
  const auto others = left == 0   ? std::string("the others have ended well")
                      : left == 1 ? std::string("1 rank goes on")
                                  : fmt::format("{} ranks go on", left);
  dist::write_all(
      STDERR_FILENO,
      fmt::format("rank {} {} by {}; {}\n", r,
                  ranks_[r].suspicion + (ranks_[r].suspicion.empty() ? "" : " and ") + "was killed",
                  name_of_signal(signal), others));
}

void Survivors::end_well(std::size_t r) {
  ranks_[r].state = State::ended_well;
  publish();
}

bool Survivors::succeeds_rank0(std::size_t r) const {
  return r > 0 && !lost(r) &&
         std::all_of(ranks_.begin(), ranks_.begin() + std::ptrdiff_t(r),
                     [](const Rank& rank) { return rank.state == State::lost; });
}

// The socket of the last generation may be left from a rank that died while others joined it.
void Survivors::publish() {
  unlink(rendezvous_.c_str());
  generation_ = {.number = generation_.number + 1};
  for (std::size_t r = 0; r < ranks_.size(); ++r)
    if (ranks_[r].state == State::living) generation_.members.push_back(static_cast<int>(r));
  const std::string line = dist::write_generation(generation_);
  dist::checked(static_cast<int>(write(file_.get(), line.data(), line.size())),
                "tell the ranks who is left");
}

bool Survivors::take(const dist::Suspicion& suspicion) {
  if (suspicion.generation != generation_.number || suspicious_ == generation_.number ||
      suspicion.rank < 0 || dist::index(suspicion.rank) >= ranks_.size())
    return false;
  suspicious_ = generation_.number;
  ranks_[dist::index(suspicion.rank)].suspicion = suspicion.why;
  return true;
}

}  // namespace lockstep::launch
