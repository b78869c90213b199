#pragma once
/// Of a job that goes on without its lost ranks (LaunchOptions::survive): who is lost, what the
/// others are told (dist/rendezvous/survival/generation.h), and whom they suspect. Of the
/// launcher's thread.

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/dist/rendezvous/socket.h"
#include "lockstep/dist/rendezvous/survival/generation.h"

namespace lockstep::launch {

class Survivors {
 public:
  /// `rendezvous`: the path at which rank 0 of each generation makes its socket. Throws CommError
  /// if there is no memory for the file.
  Survivors(int ranks, std::string rendezvous);

  /// The file of generations, for the ranks.
  int descriptor() const { return file_.get(); }

  /// Whether another one lives, or has ended well: in survive() that is after all have done their
  /// work.
  bool others_do(std::size_t r) const;
  /// Rank `r`, which `signal` has killed, is lost: one line on stderr. The others go on.
  void lose(std::size_t r, int signal);
  /// One that joins must not wait for it.
  void end_well(std::size_t r);

  bool lost(std::size_t r) const { return ranks_[r].state == State::lost; }
  /// Whether `r` is the first that is not lost, and has the place of a rank 0 that is.
  bool succeeds_rank0(std::size_t r) const;
  /// Whether the rank is to be killed. One per generation: its loss makes a new one, and what
  /// others say of the old is past.
  bool take(const dist::Suspicion& suspicion);

 private:
  enum class State { living, ended_well, lost };
  struct Rank {
    State state = State::living;
    std::string suspicion{};  // "hangs"; empty: none
  };
  void publish();

  std::string rendezvous_;
  dist::Descriptor file_;
  dist::Generation generation_{};
  int suspicious_ = -1;  // the last generation in which a rank was suspected
  std::vector<Rank> ranks_;
};

}  // namespace lockstep::launch
