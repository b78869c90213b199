#pragma once
/// Of a job that goes on without its lost ranks (LaunchOptions::survive): who is lost and who has
/// come, what the others are told (dist/rendezvous/survival/generation.h), and whom they suspect.
/// Of the launcher's thread.

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/dist/rendezvous/socket.h"
#include "lockstep/dist/rendezvous/survival/generation.h"

namespace lockstep::launch {

class Survivors {
 public:
  /// `rendezvous`: the path at which rank 0 of each generation makes its socket. `tell`: where
  /// lines go; empty: to stderr. Throws CommError if there is no memory for the file.
  Survivors(int ranks, std::string rendezvous, std::function<void(const std::string&)> tell = {});

  /// The file of generations, for the ranks.
  int descriptor() const { return file_.get(); }

  /// Whether another one is in the job, or has ended well: in survive() that is after all have done
  /// their work.
  bool others_do(std::size_t r) const;
  /// Rank `r`, which `signal` has killed, is lost: one line. The others go on.
  void lose(std::size_t r, int signal);
  /// One that joins must not wait for it. Returns those that have come too late: they are to be
  /// killed.
  std::vector<std::size_t> end_well(std::size_t r);
  bool finished() const;  ///< whether one has ended well

  /// One more rank is started, under the next number.
  void add() { ranks_.push_back({.state = State::starting}); }
  /// It is ready: a new generation, and one line.
  void let_in(std::size_t r);
  /// It is in a world with the others.
  void take_joined(std::size_t r) { ranks_[r].joined = true; }

  bool lost(std::size_t r) const { return ranks_[r].state == State::lost; }
  /// Whether `r` is the first that is not lost, and has the place of a rank 0 that is.
  bool succeeds_rank0(std::size_t r) const;
  /// Whether the rank is to be killed. One per generation: its loss makes a new one, and what
  /// others say of the old is past.
  bool take(const dist::Suspicion& suspicion);

 private:
  enum class State { starting, living, ended_well, lost };
  struct Rank {
    State state = State::living;
    bool joined = false;      // has the state of the others, or began with them
    std::string suspicion{};  // "hangs"; empty: none
  };
  void write();    // the generation
  void publish();  // a new one

  std::string rendezvous_;
  std::function<void(const std::string&)> tell_;
  dist::Descriptor file_;
  dist::Generation generation_{.number = 0, .members = {}};
  int suspicious_ = -1;  // the last generation in which a rank was suspected
  std::vector<Rank> ranks_;
};

}  // namespace lockstep::launch
