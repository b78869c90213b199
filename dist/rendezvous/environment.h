#pragma once
/// Which rank of which world a process is: launchers say it in environment variables.
///
///   launcher           rank, size, local rank, local size       job
///   lockstep-run       RANK, WORLD_SIZE,                        LOCKSTEP_JOB
///                      LOCAL_RANK, LOCAL_WORLD_SIZE
///   torchrun           the same four                            TORCHELASTIC_RUN_ID, port, restart
///   by hand, Kubeflow  the same four, or the first two          MASTER_ADDR, MASTER_PORT
///   mpirun (Open MPI)  OMPI_COMM_WORLD_RANK, _SIZE,             PMIX_NAMESPACE
///                      _LOCAL_RANK, _LOCAL_SIZE
///   srun               SLURM_PROCID, SLURM_STEP_NUM_TASKS,      SLURM_JOB_ID, SLURM_STEP_ID
///                      SLURM_LOCALID, SLURM_STEP_TASKS_PER_NODE
///
/// The machine of a rank is GROUP_RANK (the first three), PMIX_HOSTNAME (mpirun) or SLURM_NODEID
/// (srun). Where none is set it is the host's name.
///
/// With the first two alone, and MASTER_ADDR and MASTER_PORT (Kubeflow's PyTorchJob), ranks find
/// out when they meet which of them share a machine: those whose hosts have one name, in the order
/// of their ranks. They talk by TCP, for containers of one machine may not share its memory.
///
/// Where several launchers have set their variables, the nearest counts: it was the last to start
/// something on the way to this process. lockstep-run notes which launcher that is
/// (surroundings/nearest.h). Without lockstep-run, it is the first in this order: each may run
/// inside one further down (mpirun starts its daemons by srun). A contradiction is an error that
/// names both:
///
///   by hand            its world has fewer ranks than that of mpirun or srun, or as many and this
///                      process another rank
///   torchrun, mpirun   its world has fewer ranks than that of another mpirun
///
/// LOCKSTEP_DIE_WITH_PARENT=1, with any launcher: the rank ends with the process that started it.
/// LOCKSTEP_WATCHDOG=0, with any launcher: a rank may go on that does not notice that its job has
/// failed (watchdog.h).
///
/// Thread-safety: may be called by any thread while no thread changes the environment.

#include <functional>
#include <optional>
#include <string>

namespace lockstep::dist {

/// The most ranks of a world.
constexpr int max_ranks = 4096;

/// What a launcher says about this process.
struct LaunchInfo {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  ///< among the ranks of this machine
  int local_size = 1;
  bool local_known = true;  ///< false: these two are found out when the ranks meet
  std::string node = {};    ///< which machine: the same text on all ranks of one machine
  /// "lockstep-run", "torchrun", "mpirun", "srun" or "environment" (by hand)
  std::string launcher;
  std::string job;  ///< the same on all ranks of a job, different for different jobs
  /// Where the ranks meet: "unix:/path" or "host:port". Empty if no variable says it and all ranks
  /// are on one machine: then in a private folder of the user, under a name made from `job`.
  std::string rendezvous;
  /// The interface, by name or address, at which other machines reach this rank; empty: the one
  /// that its connection with rank 0 uses. LOCKSTEP_INTERFACE, with any launcher.
  std::string interface = {};
  int token_descriptor = -1;  ///< an inherited descriptor of 32 secret bytes; -1 if there is none
  /// Where the launcher says who is left (survival/generation.h), and the generation that this is
  /// about; -1 if the job ends with its first lost rank. LOCKSTEP_SURVIVE_FD.
  int survive_descriptor = -1;
  int generation = 0;
  int number = -1;  ///< of a job that survives: this rank's, as the launcher counts

  bool one_machine() const { return local_known && local_size == size; }
};

/// The value of an environment variable, null if it is not set; like std::getenv.
using Getenv = std::function<const char*(const char*)>;

/// What the variables say; nothing if no launcher has set any: the process was started alone.
/// Throws UsageError, with name and value, for a variable that is missing beside the others, is not
/// a number, contradicts another, or asks for more than max_ranks ranks.
std::optional<LaunchInfo> read_environment(const Getenv& get);
std::optional<LaunchInfo> read_environment();  ///< of this process; `node` is never empty

/// With LOCKSTEP_DIE_WITH_PARENT=1 the kernel kills this process (SIGKILL) as soon as the thread
/// that has started it ends: no rank survives a launcher that was killed. lockstep-run does so by
/// itself; the variable is for other launchers and for ranks started by hand. Without it, or with
/// 0, nothing changes. It holds from now on, as long as the calling thread lives; if the parent
/// ends while this runs, so does this process. Throws UsageError for another value.
void die_with_parent_if_asked(const Getenv& get);
void die_with_parent_if_asked();

/// Unless LOCKSTEP_WATCHDOG=0. Throws UsageError for a value that is neither 0 nor 1.
bool watchdog_wanted();

}  // namespace lockstep::dist
