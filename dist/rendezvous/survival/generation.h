#pragma once
/// Generations of a job that survives: each time its launcher has lost a rank, or has a new one,
/// the ranks that the launcher names make a new world. The launcher alone says which ranks live;
/// ranks tell it which rank they suspect.
///
///   launcher --- LOCKSTEP_SURVIVE_FD: a file in memory, one line per generation ---> ranks
///            <-- events (rank_event.h): it is ready, has joined, suspects a rank --- ranks
///
/// A line of the file is written by one call, at its end: a reader takes the last whole one.
///
/// Ranks have the numbers that the launcher gave them at the start. Thread-safety: any thread.

#include <algorithm>
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

}  // namespace lockstep::dist
