#pragma once
/// Is this a place where a job can train? Checks that each say what they found and, if it is bad,
/// what to do. `./lockstep doctor` runs them all; each is a function for programs of your own.
///
///   for (const doctor::Finding& finding : doctor::check_machine({.ranks = 4}))
///     fmt::print("{}\n", doctor::to_text(finding));
///   const World world = World::join();
///   for (const doctor::Finding& finding : doctor::check_world(world)) ...
///
/// Thread-safety: checks of one process may be called by any thread; checks of a world are
/// collective and belong to its thread.

#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/autograd/parameter.h"
#include "lockstep/core/system/memory_limits.h"
#include "lockstep/dist/rendezvous/environment.h"
#include "lockstep/dist/transport/backoff.h"
#include "lockstep/dist/world/world.h"

namespace lockstep::doctor {

struct Finding {
  std::string check;  ///< "shared memory"
  bool good = true;
  std::string found;   ///< "24.0 GiB free in /dev/shm"
  std::string advice;  ///< what to do; empty if it is good
};

/// "ok      shared memory: 24.0 GiB free in /dev/shm", and a second line with the advice.
std::string to_text(const Finding& finding);

// --- This process ---

struct MachineOptions {
  int ranks = 2;                     ///< on this machine
  std::uint64_t bytes = 64U << 20U;  ///< of gradients, per rank
  std::string folder = ".";          ///< for checkpoints
};

/// What a launcher has set makes sense: ranks, sizes, addresses.
Finding check_environment(const dist::Getenv& get);
/// A process may open as many files as `ranks` over TCP need.
Finding check_descriptors(int ranks);
/// The gradients of the ranks of this machine find room. Ranks share them in memory of no folder
/// (memfd_create): the limit is what this process may still take, not the size of /dev/shm.
Finding check_shared_memory(int ranks, std::uint64_t bytes,
                            std::optional<std::uint64_t> available = available_memory());
double load_average();  ///< how many processes have wanted a core in the last minute
/// Whether each rank of this machine has a core, and whether other processes use the cores. Never
/// bad: it tells why times may mean little.
Finding check_cores(int ranks, int cores = dist::available_cores(), double load = load_average());
/// A file can be written and renamed there; there is room for `bytes`.
Finding check_folder(const std::string& folder, std::uint64_t bytes);
/// No process listens yet where rank 0 is to listen ("host:port" or "unix:/path").
Finding check_meeting_place(const std::string& address);
/// What World::join threw.
Finding explain_join(const std::exception& error);
/// What a check of the world threw, after the ranks had joined.
Finding explain_loss(const std::exception& error);
/// The checks above that need no other rank; the meeting place if this process is to be rank 0
/// there.
std::vector<Finding> check_machine(const MachineOptions& options = {});

// --- A world: collective, the same findings on every rank ---

/// All parameters, buffers and tensors of all ranks are on one device each, of one kind.
Finding check_placement(const World& world, const std::vector<Parameter>& parameters,
                        const std::vector<Buffer>& buffers, const std::vector<Tensor>& tensors);
/// The ranks have the same parameters: names, order, shapes, dtypes.
Finding check_same_model(const World& world, const std::vector<Parameter>& parameters);
/// The sum of known numbers is right, at sizes that take each algorithm and several pieces. Of
/// tensors on `device`: on a GPU of this rank, of fewer sizes; bad also if no engine reaches it.
Finding check_all_reduce(const World& world, Device device = {});
/// What is wrong with that sum over `ranks` ranks, each of which gave i % 1000 + 1000 rank for
/// element i; empty if nothing is. A pure function.
std::string wrong_sum(std::span<const float> sums, int ranks);
/// DDP's mean of known gradients on `device` is right, with uneven batches and an unused parameter.
Finding check_gradients(const World& world, Device device = {});
/// What is wrong with that mean over `ranks` ranks; empty if nothing is. A pure function.
std::string wrong_mean(std::span<const float> means, bool unused_has_gradient, int ranks);

/// A pair of ranks.
struct Link {
  int one = 0, other = 1;
  double latency_us = 0;  ///< of a barrier, median
  double mb_per_s = 0;    ///< of an all-reduce of 4 MiB: its bytes by its shortest time
};
/// Measures all pairs, or with more than 8 ranks the pairs of neighbours.
std::vector<Link> measure_links(const World& world);
/// None is far slower than the best quarter: 5 times its latency and 1 ms more, or a fifth of its
/// bandwidth. Of a single link there is nothing to compare it with. A pure function.
Finding judge_links(const std::vector<Link>& links);
/// The share of a training step that a rank spends in communication, and who is slow. Never bad.
Finding measure_step(const World& world);

/// All checks of a world that need no model.
std::vector<Finding> check_world(const World& world);

}  // namespace lockstep::doctor
