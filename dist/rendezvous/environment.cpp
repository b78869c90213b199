#include "lockstep/dist/rendezvous/environment.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "lockstep/core/error.h"
#include "lockstep/dist/rendezvous/ranks.h"
#include "lockstep/dist/rendezvous/surroundings/nearest.h"

namespace lockstep::dist {

namespace {

std::string text_or(const Getenv& get, const char* name, const char* otherwise) {
  const char* value = get(name);
  return value ? value : otherwise;
}

/// The value of a variable that must be set because `because` is.
const char* required(const Getenv& get, const char* name, std::string_view because) {
  const char* value = get(name);
  check<UsageError>(value, "[environment] {} is not set, but {} is", name, because);
  return value;
}

/// A whole number of at least 0.
int number(const Getenv& get, const char* name, std::string_view because) {
  const char* value = required(get, name, because);
  const auto result = parse_number<int>(value);
  check<UsageError>(result && *result >= 0,
                    "[environment] {} must be a whole number of at least 0, got '{}'", name, value);
  return *result;
}

bool flag(const Getenv& get, const char* name, const char* otherwise) {
  const std::string value = text_or(get, name, otherwise);
  check<UsageError>(value == "0" || value == "1", "[environment] {} must be 0 or 1, got '{}'", name,
                    value);
  return value == "1";
}

/// Names of the variables of one launcher.
struct Names {
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  const char* node;
};
constexpr Names torchrun_names{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                               "GROUP_RANK"};
constexpr Names mpirun_names{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "PMIX_HOSTNAME"};
constexpr Names srun_names{"SLURM_PROCID", "the number of tasks", "SLURM_LOCALID",
                           "the number of tasks on this node", "SLURM_NODEID"};

// MVAPICH2's mpirun; MPICH's and Intel MPI's (Hydra). They do not name the node: gethostname does.
constexpr Names mvapich_names{"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
                              "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE", ""};
constexpr Names hydra_names{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ""};

void check_ranks(const LaunchInfo& launch, const Names& names) {
  const auto below = [](int value, int limit, const char* name, const char* limit_name) {
    check<UsageError>(value < limit, "[environment] {}={} must be less than {}={}", name, value,
                      limit_name, limit);
  };
  check<UsageError>(launch.size <= max_ranks, "[environment] {}={}: a world has at most {} ranks",
                    names.size, launch.size, max_ranks);
  below(launch.rank, launch.size, names.rank, names.size);
  below(launch.local_rank, launch.local_size, names.local_rank, names.local_size);
  check<UsageError>(launch.local_size <= launch.size, "[environment] {}={} is more than {}={}",
                    names.local_size, launch.local_size, names.size, launch.size);
  check<UsageError>(launch.local_rank <= launch.rank, "[environment] {}={} is more than {}={}",
                    names.local_rank, launch.local_rank, names.rank, launch.rank);
}

// `local_may_lack`: the launcher need not say which ranks share a machine.
LaunchInfo read_ranks(const Getenv& get, const Names& names, bool local_may_lack = false) {
  const char* present = get(names.rank) ? names.rank : names.size;
  LaunchInfo launch;
  launch.rank = number(get, names.rank, present);
  launch.size = number(get, names.size, present);
  launch.local_known =
      launch.size == 1 || !local_may_lack || get(names.local_rank) || get(names.local_size);
  // A world of 1 that a user has set by hand needs no more.
  if ((launch.size != 1 && launch.local_known) || get(names.local_rank))
    launch.local_rank = number(get, names.local_rank, present);
  if ((launch.size != 1 && launch.local_known) || get(names.local_size))
    launch.local_size = number(get, names.local_size, present);
  launch.node = text_or(get, names.node, "");
  check_ranks(launch, names);
  return launch;
}

LaunchInfo from_torchrun(const Getenv& get) {
  const bool by_hand = !get("LOCKSTEP_JOB") && !get("TORCHELASTIC_RUN_ID");
  LaunchInfo launch = read_ranks(get, torchrun_names, by_hand);
  if (const char* job = get("LOCKSTEP_JOB")) {
    launch.launcher = "lockstep-run";
    launch.job = job;
  } else if (const char* run = get("TORCHELASTIC_RUN_ID")) {
    // The run id is "none" unless the user chose one. A restarted job must not meet the old one.
    launch.launcher = "torchrun";
    launch.job = fmt::format("{}:{}:{}", run, text_or(get, "MASTER_PORT", ""),
                             text_or(get, "TORCHELASTIC_RESTART_COUNT", "0"));
  } else {
    launch.launcher = "environment";
    check<UsageError>(launch.size == 1 || get("MASTER_PORT") || get("LOCKSTEP_RENDEZVOUS"),
                      "[environment] RANK and WORLD_SIZE are set, but neither MASTER_PORT nor "
                      "LOCKSTEP_RENDEZVOUS is: the ranks would not know where to meet");
    launch.job =
        fmt::format("{}:{}", text_or(get, "MASTER_ADDR", ""), text_or(get, "MASTER_PORT", ""));
  }
  return launch;
}

LaunchInfo from_mpirun(const Getenv& get) {
  LaunchInfo launch = read_ranks(get, mpirun_names);
  launch.launcher = "mpirun";
  launch.job = required(get, "PMIX_NAMESPACE", mpirun_names.rank);
  return launch;
}

// These launchers tell ranks no name of their job: the ranks need a place to meet.
LaunchInfo from_other_mpirun(const Getenv& get, const Names& names) {
  LaunchInfo launch = read_ranks(get, names);
  launch.launcher = "mpirun";
  const char* place = get("LOCKSTEP_RENDEZVOUS");
  check<UsageError>(place || get("MASTER_PORT") || launch.size == 1,
                    "[environment] {} says that there are {} ranks, but their mpirun does not say "
                    "where they meet: set LOCKSTEP_RENDEZVOUS=host:port, a free port of rank 0's "
                    "machine, or MASTER_ADDR and MASTER_PORT",
                    names.size, launch.size);
  launch.job = place ? place
                     : fmt::format("{}:{}", text_or(get, "MASTER_ADDR", ""),
                                   text_or(get, "MASTER_PORT", ""));
  return launch;
}

/// Slurm's short form of tasks per node: "2(x3),1" means 2, 2, 2, 1.
int tasks_on_node(std::string_view list, int node) {
  const std::string_view whole = list;
  int first = 0;
  while (!list.empty()) {
    const std::string_view part = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), part.size() + 1));
    const std::size_t times = part.find("(x");
    const auto tasks = parse_number<int>(part.substr(0, times));
    std::optional<int> nodes = 1;
    if (times != part.npos) {
      nodes = parse_number<int>(part.substr(times + 2, part.size() - times - 3));
      if (!part.ends_with(')')) nodes.reset();
    }
    check<UsageError>(tasks && *tasks > 0 && nodes && *nodes > 0 && *nodes <= max_ranks,
                      "[environment] cannot read SLURM_STEP_TASKS_PER_NODE='{}'", whole);
    first += *nodes;
    if (node < first) return *tasks;
  }
  fail<UsageError>("[environment] SLURM_NODEID={} is not in SLURM_STEP_TASKS_PER_NODE='{}'", node,
                   whole);
}

/// Inside salloc and sbatch, Slurm's variables exist without srun. Only a step has a number. Steps
/// of Slurm's own (batch script, interactive shell, ...) have the highest numbers below 2^32.
bool is_srun_step(const Getenv& get) {
  const char* step = get("SLURM_STEP_ID");
  if (!step || !get("SLURM_PROCID")) return false;
  const auto id = parse_number<std::uint64_t>(step);
  check<UsageError>(id.has_value(), "[environment] SLURM_STEP_ID must be a number, got '{}'", step);
  return *id < 0xfffffff0u;
}

/// Hydra starts its daemons by srun, which may set PMI_RANK, too, but not this.
bool has_hydra(const Getenv& get) { return get("MPI_LOCALRANKID"); }

LaunchInfo from_srun(const Getenv& get) {
  const char* because = "SLURM_STEP_ID";
  LaunchInfo launch;
  launch.launcher = "srun";
  launch.rank = number(get, "SLURM_PROCID", because);
  launch.local_rank = number(get, "SLURM_LOCALID", because);
  const bool step_tasks = get("SLURM_STEP_NUM_TASKS");
  launch.size = number(get, step_tasks ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", because);
  const char* per_node = required(get, "SLURM_STEP_TASKS_PER_NODE", because);
  launch.local_size = tasks_on_node(per_node, number(get, srun_names.node, because));
  launch.node = get(srun_names.node);
  launch.job = fmt::format("{}.{}", required(get, "SLURM_JOB_ID", because), get(because));
  check_ranks(launch, srun_names);
  return launch;
}

/// Where the ranks meet. Not at MASTER_PORT itself, because torchrun's own rendezvous listens on
/// it.
std::string meeting_point(const Getenv& get, const LaunchInfo& launch) {
  if (const char* rendezvous = get("LOCKSTEP_RENDEZVOUS")) return rendezvous;
  if (launch.one_machine()) return "";
  const char* address = get("MASTER_ADDR");
  check<UsageError>(
      address && get("MASTER_PORT"),
      "[environment] {} started {} ranks on several machines, but MASTER_ADDR and MASTER_PORT are "
      "not set: set LOCKSTEP_RENDEZVOUS=host:port, a free port of rank 0's machine",
      launch.launcher, launch.size);
  const int port = number(get, "MASTER_PORT", "MASTER_ADDR");
  check<UsageError>(
      port > 0 && port < std::numeric_limits<std::uint16_t>::max(),
      "[environment] MASTER_PORT must be from 1 to 65534 (the port after it is used), got {}",
      port);
  return fmt::format("{}:{}", address, port + 1);
}

/// That `launch`, which counts and has `own` names, does not contradict another launcher (see
/// environment.h): several worlds, each with a rank 0, would train in silence.
void check_no_other_world(const Getenv& get, const LaunchInfo& launch, const Names& own) {
  const bool by_hand = launch.launcher == "environment";
  const auto check_claim = [&](const char* launcher, const char* rank_name, const char* size_name) {
    if (rank_name == std::string_view(own.rank)) return;
    const char *rank_text = get(rank_name), *size_text = get(size_name);
    const auto rank = parse_number<int>(rank_text ? rank_text : "");
    const auto size = parse_number<int>(size_text ? size_text : "");
    if (!rank || !size) return;
    const bool fits =
        launch.size > *size || (launch.size == *size && (!by_hand || launch.rank == *rank));
    check<UsageError>(fits,
                      "[environment] {}={} of {}={} ({}) and {}={} of {}={} ({}) are two worlds: "
                      "unset those of the launcher that has not started this program",
                      own.rank, launch.rank, own.size, launch.size,
                      by_hand ? "set by hand" : launch.launcher, rank_name, *rank, size_name, *size,
                      launcher);
  };
  check_claim("mpirun", mpirun_names.rank, mpirun_names.size);
  check_claim("mpirun", mvapich_names.rank, mvapich_names.size);
  if (has_hydra(get)) check_claim("mpirun", hydra_names.rank, hydra_names.size);
  if (by_hand && is_srun_step(get))
    check_claim("srun", srun_names.rank,
                get("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS");
}

}  // namespace

std::optional<LaunchInfo> read_environment(const Getenv& all) {
  check_as_started(all);
  const Getenv get = nearest_launcher(all);
  const auto any = [&](const Names& names) { return get(names.rank) || get(names.size); };
  const auto read = [&](const Names& names, auto&& from) {
    LaunchInfo launch = from(get);
    if (launch.launcher != "lockstep-run") check_no_other_world(get, launch, names);
    return launch;
  };
  const auto from_hydra = [](const Getenv& g) { return from_other_mpirun(g, hydra_names); };
  const auto from_mvapich = [](const Getenv& g) { return from_other_mpirun(g, mvapich_names); };
  LaunchInfo launch;
  if (any(torchrun_names)) {
    launch = read(torchrun_names, from_torchrun);
  } else if (any(mpirun_names)) {
    launch = read(mpirun_names, from_mpirun);
  } else if (any(hydra_names) && has_hydra(get)) {
    launch = read(hydra_names, from_hydra);
  } else if (is_srun_step(get)) {
    launch = read(srun_names, from_srun);
  } else if (any(mvapich_names)) {
    launch = read(mvapich_names, from_mvapich);
  } else if (any(hydra_names)) {
    launch = read(hydra_names, from_hydra);
  } else {
    return std::nullopt;
  }
  launch.rendezvous = meeting_point(get, launch);
  launch.interface = text_or(get, "LOCKSTEP_INTERFACE", "");
  if (get("LOCKSTEP_TOKEN_FD"))
    launch.token_descriptor = number(get, "LOCKSTEP_TOKEN_FD", "LOCKSTEP_TOKEN_FD");
  if (launch.launcher == "lockstep-run" && get("LOCKSTEP_SURVIVE_FD"))
    launch.survive_descriptor = number(get, "LOCKSTEP_SURVIVE_FD", "LOCKSTEP_SURVIVE_FD");
  return launch;
}

std::optional<LaunchInfo> read_environment() {
  std::optional<LaunchInfo> launch =
      read_environment([](const char* name) { return std::getenv(name); });
  std::array<char, 256> host{};  // of at most 64 characters (gethostname(2))
  if (launch && launch->node.empty() && ::gethostname(host.data(), host.size() - 1) == 0)
    launch->node = host.data();
  return launch;
}

void die_with_parent_if_asked(const Getenv& get) {
  if (!flag(get, "LOCKSTEP_DIE_WITH_PARENT", "0")) return;
  const pid_t parent = ::getppid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::raise(SIGKILL);  // it ended between these lines
}

void die_with_parent_if_asked() {
  die_with_parent_if_asked([](const char* name) { return std::getenv(name); });
}

bool watchdog_wanted() {
  return flag([](const char* name) { return std::getenv(name); }, "LOCKSTEP_WATCHDOG", "1");
}

}  // namespace lockstep::dist
