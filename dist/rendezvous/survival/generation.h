#pragma once
/// Generations of a job that survives: each time its launcher has lost a rank, or has a new one,
/// those that it names make a new world. It alone says who lives; ranks tell it whom they suspect.
///
///   launcher --- LOCKSTEP_SURVIVE_FD: a file in memory, one line per generation ---> ranks
///            <-- LOCKSTEP_ERROR_FD: "lost <generation> <rank> hangs", or what it does else;
///                "ready": let me in, in the next generation;
///                "joined <generation>": what I left before counts no more;
///                "most <ranks>": so many can train together;
///                "survives": my program goes on without lost ranks                --- ranks
///
/// A line is written by one call, at the end of the file: a reader takes the last whole one.
///
/// Ranks have the numbers that the launcher gave them at the start. Thread-safety: any thread.

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::dist {

struct Generation {
  int number = 0;              ///< 0: all ranks, as they were started
  std::vector<int> members{};  ///< who is in it, in order
  std::vector<int> nodes{};    ///< of each: the machine on which it runs
  std::string address{};       ///< HOST:PORT where the first one listens; empty: as at the start
  bool has(int rank) const { return std::ranges::find(members, rank) != members.end(); }
};

/// A member's rank and size in the world of its generation, and the same among the members of its
/// machine.
struct Place {
  int rank = 0, size = 1, local_rank = 0, local_size = 1;
};
/// Of a `member`, by the number that the launcher gave it.
Place place_in(const Generation& generation, int member);

/// One line, with its newline.
std::string write_generation(const Generation& generation);
/// The newest of the file. Throws CommError if it cannot be read, or has none.
Generation newest_generation(int descriptor);

/// A rank that did not answer the others of its generation, or was found to be wrong.
struct Suspicion {
  int generation, rank;
  std::string why{};  ///< "hangs"; one line, of at most 300 bytes
};
/// Tells the launcher, which kills it. Best effort.
void suspect(const Suspicion& suspicion) noexcept;
/// Tells the launcher that this rank is in a new world: replicas that it left before are past.
void tell_joined(int generation) noexcept;
bool is_joined_line(std::string_view line);
/// Tells the launcher that this program has called survive().
void tell_survives() noexcept;
bool is_survives_line(std::string_view line);
/// Tells the launcher that this program trains on so many ranks at most.
void tell_most_ranks(int ranks) noexcept;
std::optional<int> read_most_ranks(std::string_view line);  ///< nothing for a line that is none
/// Tells the launcher that this rank, which was started later than others, can join them.
void tell_ready() noexcept;
bool is_ready_line(std::string_view line);
/// Nothing for a line (without its newline) that is none.
std::optional<Suspicion> read_suspicion(std::string_view line);

}  // namespace lockstep::dist
