#pragma once
/// Starts the ranks of a job on this machine, as `lockstep-run` and `train --ranks N` do, and ends
/// them together.
///
///   launcher --- guardian (see process.h)
///      |---- rank 0     each in its own process group, in the launcher's session, with
///      |---- rank 1     RANK, WORLD_SIZE, LOCAL_RANK, ... in its environment
///      `---- rank 2
///
/// On several machines each has a launcher, and the launchers are connected: nodes.h.
///
/// What a rank finds:
///   RANK, WORLD_SIZE               0 ... ranks of all nodes - 1, and how many these are
///   LOCAL_RANK, LOCAL_WORLD_SIZE   the same among the ranks of this machine
///   GROUP_RANK, GROUP_WORLD_SIZE   the same of this machine among the nodes
///   MASTER_ADDR, MASTER_PORT       node 0 (127.0.0.1 if it is the only one) and a free port, for
///                                  programs that expect torchrun
///   LOCKSTEP_JOB                   a random name
///   LOCKSTEP_RENDEZVOUS            unix:PATH, a socket that rank 0 makes, in a folder of mode
///                                  0700; with several nodes HOST:PORT, where rank 0 listens
///   LOCKSTEP_TOKEN_FD              descriptor of 32 random bytes at offset 0: proof of membership
///   LOCKSTEP_INTERFACE             if one was asked for (environment.h)
///   LOCKSTEP_RESTART               how often the job has been started again: 0, 1, ...
///   LOCKSTEP_ERROR_FD              pipe for the one line on why it failed (report.h)
///   LOCKSTEP_SURVIVE_FD            with LaunchOptions::survive: who is left (survivors.h)
///   LOCKSTEP_DESCRIPTORS           what these descriptors are (surroundings/inherited.h)
///   LOCKSTEP_STARTED               all of this once more (surroundings/nearest.h)
///   OMP_NUM_THREADS                1, unless set: one core per rank
/// Rank 0 reads its launcher's stdin, the others /dev/null. stdout is the launcher's. Rank 0's
/// stderr is its launcher's too, so that a progress bar sees the terminal. The other ranks' stderr
/// is held back; only the end of a failed rank's is shown.
///
/// Thread-safety: call both functions from a program's main thread before other threads exist. The
/// ranks die with the calling thread, and the thread's signals are blocked meanwhile.

#include <string>
#include <vector>

#include "lockstep/launch/nodes.h"

namespace lockstep::launch {

constexpr dist::Seconds longest_grace{86400};

struct LaunchOptions {
  int ranks = 1;           ///< on this machine
  bool verbose = false;    ///< tell the process id of each rank, on stderr: for gdb -p
  bool prefix = false;     ///< put `[rank] ` in front of every line that any rank writes
  NodesOptions nodes{};    ///< with a `count` of 1, this machine is the only one
  dist::Seconds grace{2};  ///< between SIGTERM, or a signal passed on, and SIGKILL; at most a day
  /// After a failure, start all ranks again, up to so many times: they go on from the checkpoint
  /// that they find. On one machine.
  int restarts = 0;
  /// Ranks that are killed do not end the job: the others go on in a new world
  /// (dist/world/survive.h), as long as one is left. The same on all nodes.
  bool survive = false;
  /// With `survive`: so many of the ranks that are lost are replaced by new ones, which join. The
  /// same on all nodes.
  int respawn = 0;
};

/// Runs `command` (program and arguments) once per rank and returns the exit code: 0 if all ranks
/// (of all nodes) succeeded, else that of the rank that is the first cause of the failure, which is
/// reported on stderr (job_result.h). After a failure the other ranks have one second to notice it
/// and to report what they saw. Then they get SIGTERM, and SIGKILL when `grace` is over. A
/// signal that would end the launcher (SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR2, SIGALRM, ...) is
/// passed on to all ranks, once; SIGKILL follows after the same time, and the report names it. When
/// this returns or throws, no process of any rank's group is left.
///
/// A rank that hangs is named by the ranks that wait for it. Where others have ended their World,
/// and one rank has not, no rank waits for it: once it was stopped, or has looped, for its World's
/// timeout and 2 s, it is killed and named (launcher_looks.cpp). The launcher waits for a rank that
/// is at work (core/system/progress.h), and for one whose World has ended. A rank that leaves its
/// World with code 0 when others have ended theirs is a failure as well.
///
/// A job is started again (LaunchOptions::restarts) if a rank was killed or failed by itself; not
/// after exit code 2 (a wrong option stays wrong), replicas that differ at the end, or a signal to
/// the launcher. Every failure is reported.
///
/// With LaunchOptions::survive a rank that a signal has killed is lost, and one line on stderr says
/// so. So is a rank that others report as hanging: it is killed. The ranks that are left learn it,
/// and their results alone count. The last rank is not lost, unless others have ended well: its end
/// is the job's end. A rank that is started later (`respawn`; one for each SIGUSR1 to the launcher)
/// has the next free number. When it is ready it joins the others, at the edge of a step.
///
/// SIGTSTP (Ctrl-Z) stops the ranks' groups and then the launcher; SIGCONT (fg) to the launcher
/// lets all continue. A collective does not count the stop as a time without progress; the ranks of
/// other nodes do. SIGHUP and SIGTSTP are left alone if they were ignored when the launcher was
/// started (nohup).
///
/// Throws UsageError for no ranks, no command, a `grace` out of its range, or restarts on
/// several nodes, Error if a rank cannot be started, and what Nodes throws if the nodes do not
/// meet.
int run_ranks(const LaunchOptions& options, const std::vector<std::string>& command);

/// The same for the running program itself with its own arguments: every rank is this program.
int run_this_program(const LaunchOptions& options, int argc, const char* const* argv);

}  // namespace lockstep::launch
