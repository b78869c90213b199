#pragma once
/// The table of the fault drill, as data: every fault, at every moment, by every victim, under
/// every way to start ranks, over every transport. A cell is one run of
/// support/programs/fault_victim.cpp.

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::test {

constexpr int ranks = 3;
constexpr double timeout = 2;  ///< seconds: of joining, and of collectives
constexpr double grace = 0.5;  ///< seconds: of the launcher, between SIGTERM and SIGKILL

struct Fault {
  std::string name;  ///< as fault_victim takes it
  std::string text;
};
inline const std::vector<Fault> faults = {
    {"SIGKILL", "SIGKILL"},
    {"SIGSEGV", "SIGSEGV"},
    {"SIGABRT", "SIGABRT"},
    {"SIGTERM", "SIGTERM to a rank"},
    {"SIGINT", "SIGINT to a rank"},
    {"SIGHUP", "SIGHUP to a rank"},
    {"SIGSTOP", "SIGSTOP: it hangs"},
    {"loop", "an endless loop"},
    {"pause", "the whole job is stopped, and goes on"},
    {"exit(0)", "`exit(0)`"},
    {"exit(3)", "`exit(3)`"},
    {"throw", "an exception, in `run_main`"},
    {"uncaught", "an exception that nobody catches"},
};

inline const std::vector<std::string> moments = {"before joining", "joining", "in a collective",
                                                 "between steps",  "saving",  "at the end"};

struct Start {
  std::string name;
  std::string text;
  std::vector<std::string> transports;  ///< as fault_victim takes them
  bool ends_ranks;                      ///< it ends the others once a rank has failed
  bool is_ours;                         ///< its line names a rank and a reason
};
inline const std::vector<Start> starts = {
    {"lockstep-run", "lockstep-run -n 3", {"shm", "tcp"}, true, true},
    {"nodes", "lockstep-run on two nodes, 2 + 1 ranks", {"auto", "tcp"}, true, true},
    {"mpirun", "mpirun -n 3 (Open MPI)", {"shm", "tcp"}, true, false},
    {"torchrun", "torchrun's variables, without its agent", {"shm", "tcp"}, false, false},
    {"by hand", "by hand: RANK, LOCKSTEP_RENDEZVOUS and so on", {"shm", "tcp"}, false, false},
};

struct Cell {
  const Start* start;
  const Fault* fault;
  const std::string* moment;
  const std::string* transport;
  int victim;  ///< 0, one in the middle, the last
  std::string text() const {
    return start->name + ", " + *transport + ": " + fault->name + " of rank " +
           std::to_string(victim) + " " + *moment;
  }
};
/// All of them, by rows of docs/reliability.md; those of a row differ in transport and victim.
std::vector<Cell> all_cells();

/// What was seen of a cell.
struct Seen {
  bool reached = false;            ///< the victim came to the moment
  std::vector<int> codes;          ///< of the programs that the drill started; -1: none yet
  std::vector<int> signals;        ///< that ended them
  std::string err;                 ///< of all of them
  std::vector<std::string> said;   ///< what each rank threw, empty for nothing
  double slowest_said = 0;         ///< seconds from the moment to the last of them
  double seconds = 0;              ///< from the moment to the end of all but a victim that hangs
  bool ended = false;              ///< all of them, in time
  int left_running = 0;            ///< processes, the victim not among them
  bool victim_left = false;        ///< it hangs still
  std::vector<std::string> files;  ///< temporary files and sockets that are left
  bool checkpoint_old = false, checkpoint_new = false;  ///< it can be read, and which it is
  bool next_save_cleans = true;  ///< the next save removes an unfinished checkpoint
};
Seen run_cell(const Cell& cell);

/// What the drill makes of it.
struct Verdict {
  std::vector<std::string> wrong;          ///< what must not be: it fails the drill
  std::vector<std::string> limits;         ///< what is so, and is said
  int survivors = 0, survivors_right = 0;  ///< that threw, and that named the victim
  std::optional<bool> launcher_right;      ///< whether its line named the victim
  std::vector<std::string> survivors_say;  ///< without numbers that depend on the victim
  std::string launcher_says;
};
Verdict judge(const Cell& cell, const Seen& seen);

/// The ranks of the world that a message blames.
std::vector<int> blamed(const std::string& message);

/// docs/reliability.md. verdicts[i] is that of all_cells()[i].
std::string reliability_page(const std::vector<Seen>& seen, const std::vector<Verdict>& verdicts);
/// The first columns of the page's rows, under the heading of their start.
std::string row_head(const Fault& fault, const std::string& moment);

}  // namespace lockstep::test
