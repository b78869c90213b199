#pragma once
/// What a rank tells its launcher, and launchers tell node 0's of their ranks: a value with one
/// form as text, one line.
///
///   rank --- a line in its pipe (launcher_pipe.h) ---> its launcher --- a frame ---> node 0's
///
/// Thread-safety: values and pure functions.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/core/error.h"

namespace lockstep::dist {

/// Why a rank failed.
struct FailureRecord {
  bool consequence = false;  ///< of another rank's failure (PeerError): not the cause
  std::string message{};     ///< one line; empty if the rank has reported it (AlreadyReported)
  Blame blame{};             ///< Error::blame; empty: this rank, or it is not known

  /// For people: the blame first.
  std::string text() const { return blame.known() ? text_of(blame) + ": " + message : message; }
};

/// A replica that a rank has left (left_replicas.h).
struct ReplicaRecord {
  std::uint64_t model = 0, fingerprint = 0;
  bool operator==(const ReplicaRecord&) const = default;
};

struct RankEvent {
  enum class Kind : std::uint8_t {
    // A rank tells it:
    survives,      ///< its program has called survive()
    limited,       ///< its program trains on `number` ranks at most
    ready,         ///< it was started later, and can join
    joined,        ///< it is in the world of generation `number`: what it left before is past
    suspected,     ///< `rank` hangs, or is wrong (failure.blame), in generation `number`
    world_begins,  ///< it is in the World of its job; `seconds`: its timeout, 0 if it will not tell
                   ///< whether it works
    works,         ///< it is at work (core/system/progress.h)
    world_ends,    ///< that World has ended in peace
    replica,       ///< it has left `replica`
    failed,        ///< `failure`
    // Its launcher sees it:
    killed,       ///< signal `number` has ended it
    not_started,  ///< the system has refused
    ended_well,
    wanted,  ///< the user wants one more, on node `rank`
  };
  static constexpr Kind last_told = Kind::failed;

  Kind kind{};
  int rank = 0;  ///< its number in the job; a rank need not say its own: its launcher knows it
  int number = 0;
  double seconds = 0;
  ReplicaRecord replica{};
  FailureRecord failure{};

  /// One line, with its newline, of at most PIPE_BUF bytes: a single write to a pipe is atomic
  /// (pipe(7)). For that a long message is cut.
  std::string text() const;
  /// The reverse, with the newline or without; nothing if `line` is no event.
  static std::optional<RankEvent> read(std::string_view line);
};

/// A suspicion against the only rank of `blame`.
RankEvent suspicion(int generation, Blame blame);

/// The text as one line that a terminal only shows (visible()), of at most `longest` bytes.
std::string one_line(std::string_view text, std::size_t longest);

}  // namespace lockstep::dist
