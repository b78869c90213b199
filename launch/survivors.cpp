#include "lockstep/launch/survivors.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <utility>

#include "lockstep/dist/rendezvous/failure_record.h"

namespace lockstep::launch {

namespace {

std::string name_of_signal(int number) {
  const char* const name = sigabbrev_np(number);
  return name ? fmt::format("SIG{}", name) : fmt::format("signal {}", number);
}

void show(const std::string& line) { dist::write_all(STDERR_FILENO, line); }

}  // namespace

Survivors::Survivors(int ranks, std::string rendezvous,
                     std::function<void(const std::string&)> tell)
    : rendezvous_(std::move(rendezvous)),
      tell_(tell ? std::move(tell) : show),
      file_(dist::checked(memfd_create("lockstep-generations", MFD_CLOEXEC), "make a memory file")),
      ranks_(dist::index(ranks), Rank{.joined = true}) {
  for (int r = 0; r < ranks; ++r) generation_.members.push_back(r);
  write();
}

bool Survivors::others_do(std::size_t r) const {
  for (std::size_t other = 0; other < ranks_.size(); ++other)
    if (other != r && !lost(other) && ranks_[other].state != State::starting) return true;
  return false;
}

bool Survivors::finished() const {
  return std::ranges::find(ranks_, State::ended_well, &Rank::state) != ranks_.end();
}

void Survivors::lose(std::size_t r, int signal) {
  Rank& rank = ranks_[r];
  if (rank.state == State::lost) return;  // it had come too late
  const bool was_in = std::exchange(rank.state, State::lost) == State::living;
  if (was_in) publish();
  const auto left = generation_.members.size();
  const auto others = left == 0   ? std::string("the others have ended well")
                      : left == 1 ? std::string("1 rank goes on")
                                  : fmt::format("{} ranks go on", left);
  tell_(fmt::format("rank {} {}was killed by {}{}; {}\n", r,
                    rank.suspicion.empty() ? "" : rank.suspicion + " and ", name_of_signal(signal),
                    was_in ? "" : " before it had joined", others));
}

std::vector<std::size_t> Survivors::end_well(std::size_t r) {
  ranks_[r].state = State::ended_well;
  std::vector<std::size_t> late;
  for (std::size_t other = 0; other < ranks_.size(); ++other) {
    Rank& rank = ranks_[other];
    if (rank.joined || rank.state == State::lost) continue;
    rank.state = State::lost;
    late.push_back(other);
  }
  publish();
  return late;
}

void Survivors::let_in(std::size_t r) {
  if (ranks_[r].state != State::starting) return;
  ranks_[r].state = State::living;
  publish();
  tell_(fmt::format("rank {} joins; {} ranks go on\n", r, generation_.members.size()));
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
  write();
}

void Survivors::write() {
  const std::string line = dist::write_generation(generation_);
  dist::checked(static_cast<int>(::write(file_.get(), line.data(), line.size())),
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
