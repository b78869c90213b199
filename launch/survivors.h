#pragma once
/// Of a job that goes on without its lost ranks (LaunchOptions::survive): who is lost and who has
/// come, and what follows from it. It lives in one place, node 0's launcher:
///
///   node 0's launcher: Survivors            another node's launcher
///      | <--- event: rank 3 was killed -------------- |  what it sees, and what its ranks tell
///      | ---- order: publish "1 - 0@0 1@0 2@1" -----> |  a line for its ranks (generation.h)
///      | ---- order: forget rank 3 -----------------> |  its end is no failure of the job
///
/// So a network that is split cannot train twice: only ranks that reach node 0 are told to go on.
/// The others end; all end if node 0 is lost.
///
/// Survivors has no thread, file or process: it takes events and returns orders.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/dist/rendezvous/events/rank_event.h"
#include "lockstep/dist/rendezvous/survival/generation.h"

namespace lockstep::launch {

using dist::RankEvent;

/// What the launcher of `node` has to do.
struct Order {
  enum class Kind {
    tell,     ///< write `line` to stderr
    publish,  ///< tell the ranks of the node: `line` is a generation
    start,    ///< one more rank, with this number
    kill,
    forget,  ///< the rank is lost, and counts no more
    fail,    ///< the rank was killed, and the job ends with that
    show,    ///< what it writes to stderr, as rank 0 did, which is lost
  };
  Kind kind{};
  int node = 0;
  int rank = 0;
  std::string line{};

  std::string text() const;
  static Order parse(std::string_view text);  ///< throws CommError if it is none
};

class Survivors {
 public:
  /// `nodes[r]`: the machine of rank r; `addresses`: of each machine, HOST:PORT where a rank can
  /// listen for the others, or none, if there is one machine. `respawn`: so many lost ranks are
  /// replaced.
  explicit Survivors(const std::vector<int>& nodes, std::vector<std::string> addresses = {},
                     int respawn = 0);

  const dist::Generation& generation() const { return generation_; }
  [[nodiscard]] std::vector<Order> take(const RankEvent& event);
  /// A machine cannot be reached: its ranks are lost, and are not replaced.
  [[nodiscard]] std::vector<Order> lose_node(int node, const std::string& how);
  /// Whether a rank of another machine is in the job, or has ended well.
  bool others_than_node(int node) const;
  bool finished() const;  ///< whether one has ended well
  int node_of(int number) const { return ranks_.at(static_cast<std::size_t>(number)).node; }

 private:
  enum class State { starting, living, ended_well, lost };
  struct Rank {
    int node = 0;
    State state = State::living;
    bool joined = false;  // has the state of the others, or began with them
    Blame suspicion{};
    bool counts() const { return state == State::living || state == State::ended_well; }
  };
  Rank& rank(int number);
  void lose(int number, int signal);
  void end_well(std::size_t r);
  void let_in(Rank& rank, int number);
  void suspect(const RankEvent& suspicion);
  void add(int node);
  void publish();
  void show_first();
  void tell(const std::string& line) { orders_.push_back({Order::Kind::tell, 0, 0, line + '\n'}); }
  void order(Order::Kind kind, int number) {
    orders_.push_back({kind, rank(number).node, number, ""});
  }

  std::vector<std::string> addresses_;
  int respawns_;  // that are left
  int most_ = 0;  // ranks that can train together; 0: no limit
  dist::Generation generation_{};
  int suspicious_ = -1;  // the last generation in which a rank was suspected
  int shown_ = 0;        // whose stderr the user sees
  std::vector<Rank> ranks_;
  std::vector<Order> orders_{};  // of the event that is being taken
};

}  // namespace lockstep::launch
