#pragma once
/// What the ranks of one job share before they meet: a name, a secret and a place for the
/// rendezvous.
///
/// Thread-safety: use a Job from one thread at a time; functions may be called by any.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/dist/rendezvous/handshake.h"
#include "lockstep/launch/process.h"

namespace lockstep::launch {

/// A job as one of its nodes sees it.
struct JobPlan {
  int node = 0;
  int nodes = 1;
  int first_rank = 0;  ///< of this node
  int ranks = 1;       ///< on this node
  int world = 1;       ///< ranks on all nodes
  std::string name{};
  dist::Token token{};
  std::string rendezvous{};  ///< HOST:PORT; empty: a Unix socket in the job's folder
  std::string master_address = "127.0.0.1";  ///< for programs that expect torchrun
  int master_port = 0;
  std::string interface {};  ///< asked for; empty: none
  /// Of a job that survives (survivors.h): how many lost ranks are replaced. Else nothing.
  std::optional<int> respawn{};
  std::vector<int> node_of{};            ///< by rank, at the start
  std::vector<std::string> addresses{};  ///< by node: HOST:PORT for a rank there; one node: none
  std::vector<int> added{};              ///< ranks that were started on this node later
  dist::Seconds grace{2};                ///< the longest LaunchOptions::grace of all nodes

  /// The number in the job of this node's rank at `place`, in the order in which they were started.
  int number(std::ptrdiff_t place) const {
    const std::ptrdiff_t later = place - ranks;
    return later >= 0 && later < std::ssize(added) ? added[dist::index(later)]
                                                   : first_rank + static_cast<int>(place);
  }
};

/// A job on this machine alone: a random name, a secret of 32 random bytes, and a port that is free
/// now. It is not reserved: nothing of ours listens there, but a program that expects torchrun may.
/// Throws CommError if no port is free.
JobPlan local_job(int ranks);

class Job {
 public:
  /// Makes a folder of mode 0700 (surroundings/socket_folder.h), and puts the secret into memory
  /// without a name: it is never in a file or an argument list. Throws Error if the system refuses.
  explicit Job(const JobPlan& plan);
  ~Job();  ///< removes the folder

  const JobPlan& plan() const { return plan_; }
  const std::string& folder() const { return folder_; }
  int token() const { return token_.get(); }
  void add(int rank) { plan_.added.push_back(rank); }  ///< one more on this node
  void drop_added() { plan_.added.pop_back(); }        ///< the last one
  /// Tells the ranks of this node who lives (dist/rendezvous/survival/generation.h).
  void publish(std::string_view generation);
  /// The descriptors that ranks inherit.
  std::vector<int> inherited() const;

  /// The variables of this node's rank at `place`; see launch.h. `errors`: its LOCKSTEP_ERROR_FD;
  /// `restart`: its LOCKSTEP_RESTART.
  Environment environment(int place, int errors, int restart) const;

 private:
  std::string socket() const { return folder_ + "/rendezvous"; }
  JobPlan plan_;
  dist::Descriptor token_;
  dist::Descriptor generations_;  // a file in memory, of a job that survives
  std::string folder_;
};

/// The first bytes of a token as a name: 16 hexadecimal digits.
std::string name_from(const dist::Token& token);

}  // namespace lockstep::launch
