#pragma once
/// What a waiting rank knows: for how long nothing has moved and, from the wait board, whom the
/// others wait for. A rank that has waited for an eighth of the timeout tells it on the board, and
/// tells it again after each further eighth: a note that is not repeated comes from a rank that has
/// stopped.
///
///   |--- nothing moves --|- tells ----|- tells ----| ... |- times out: follows the notes
///   0                   1/8          2/8                8/8
///
/// A rank that works alone and says so (pulse.h) is not idle: the wait of the others counts from
/// the last time that it has said so. A rank whose own wait ends has moved: the wait of the others
/// counts from then, but all of it lasts no longer than a good two timeouts.
///
/// Thread-safety: none; it belongs to its communicator.

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/dist/rendezvous/running_time.h"
#include "lockstep/dist/transport/wait_board.h"

namespace lockstep::dist {

class WaitWatch {
 public:
  /// `longest_nap`: as RunningTime. `members`: the communicator's ranks in the numbers of the job;
  /// empty: these are the same. Without a board it knows the time alone.
  WaitWatch(Seconds timeout, Seconds longest_nap, std::shared_ptr<WaitBoard> board = {},
            std::vector<int> members = {});

  Seconds timeout() const { return timeout_; }
  const std::vector<int>& members() const { return members_; }
  const std::shared_ptr<WaitBoard>& board() const { return board_; }  ///< or null

  /// Something moved: the wait begins anew, or has ended.
  void moved() {
    idle_.restart();
    moved_ = Seconds(0);
    next_look_ = next_note_ = interval_;
    if (board_) board_->withdraw();
  }
  /// Nothing moved, and it is `now`. For how long? A wait that has a `limit` below the timeout is
  /// cut into eighths of that.
  Seconds look(Seconds now, Seconds limit) {
    const Seconds interval = std::min(limit, timeout_) / 8;
    if (interval != std::exchange(interval_, interval)) next_look_ = next_note_ = interval;
    return idle_.look(now) - moved_;
  }

  /// Whether it is time to exchange notes.
  bool due() const { return board_ && idle_.time() >= next_look_; }
  /// `awaited`: a rank of the communicator. `call`: in what.
  void exchange(int awaited, std::string_view call);

  struct Verdict {
    std::string text;  ///< "waiting for rank 2, which has not moved: rank 0 waits for rank 3
                       ///< (`position`), which waits for rank 2 in all_reduce #5 'bucket 0'"
    Blame blame;       ///< rank 2 hangs; empty if ranks wait for each other, or it is not known
  };
  /// Who is to blame for a timeout. Tells the others of it, too.
  Verdict blame(int awaited, std::string_view position);
  /// "rank 0 timed out, waiting for rank 2" if a rank has told so while this one waited for long;
  /// else empty.
  std::string verdict() const;

 private:
  struct Seen {
    WaitNote note{};
    Seconds at{0};         // in the time of this wait
    bool replaced{false};  // it took the place of another note that this wait has seen
  };
  void read_board(bool first);
  Seconds last_move(int awaited) const;
  /// The note of a rank that still repeats it, or has timed out; else null.
  const WaitNote* current(int rank) const;
  std::string name(int rank_in_job) const;
  int in_job(int rank) const { return members_.empty() ? rank : members_[index(rank)]; }

  Seconds timeout_;
  Seconds interval_ = timeout_ / 8;
  std::shared_ptr<WaitBoard> board_;
  std::vector<int> members_;

  RunningTime idle_;
  // When the rank that is waited for last worked or moved, in the time of this wait.
  Seconds moved_{0};
  Seconds next_look_ = interval_, next_note_ = interval_;
  std::vector<Seen> seen_;  // by rank of the job
};

}  // namespace lockstep::dist
