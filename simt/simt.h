#pragma once
/// The simulator behind simt/include/: how a program (a test, above all) sets it up.
///
/// A kernel runs block by block on the host thread that meets it, its threads as fibers that are
/// switched where they meet (barriers, instructions of a warp). One lock guards the whole
/// simulator: any host thread may call anything, and one kernel runs at a time in a process.
///
/// What each mode finds, and what the simulator cannot: docs/simulator.md.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace simt {

/// Which of the threads (and blocks) that can run goes first.
enum class Order { ascending, descending, random };

/// eager: an operation runs in the call that enqueues it. late: it waits in its stream's queue
/// until it is waited for or a seeded generator lets the stream move on, as at any call it may.
enum class Streams { eager, late };

struct Config {
  Order order = Order::ascending;  ///< LOCKSTEP_SIM_ORDER=ascending|descending|random:SEED
  std::uint64_t order_seed = 0;
  Streams streams = Streams::eager;  ///< LOCKSTEP_SIM_STREAMS=eager|late:SEED
  std::uint64_t stream_seed = 0;
  int devices = 8;                                   ///< LOCKSTEP_SIM_DEVICES, at least 1
  std::size_t device_bytes = std::size_t{16} << 30;  ///< LOCKSTEP_SIM_MEMORY, of each device
  /// 10 * major + minor. Which kernels are chosen may depend on it; clusters are refused below 90.
  int capability = 80;  ///< LOCKSTEP_SIM_CAPABILITY=MAJOR.MINOR
  /// LOCKSTEP_SIM_PEER_ACCESS=yes|no|lost: between different devices. Lost: memory of a peer can be
  /// mapped, but what is written there does not arrive, as behind a PCIe switch with ACS.
  bool peer_access = true, peer_access_lost = false;
  int connections = 8;       ///< CUDA_DEVICE_MAX_CONNECTIONS, 1 to 32: hardware queues of a device
  bool lazy_loading = true;  ///< CUDA_MODULE_LOADING=LAZY|EAGER: a kernel is loaded when first used
  /// LOCKSTEP_SIM_CAUTIOUS=yes|no: as some drivers are said to do, new streams, pinned memory and
  /// the like may wait for the whole device; and while cudaFree or its like waits for the device,
  /// other threads' calls do, too.
  bool cautious = false;
  bool races = true;  ///< LOCKSTEP_SIM_RACES=yes|no: whether a build that watches accesses does
  bool allow_fork = false;  ///< a child that was forked may use CUDA even if its parent had used it
  /// LOCKSTEP_SIM_PATIENCE, in milliseconds: if nothing moves for so long, waits can be deadlocks.
  std::chrono::milliseconds patience{10000};
  /// In each NCCL communicator the call of an operation with this number (from 1) fails on this
  /// rank.
  int nccl_fail_rank = -1;  ///< LOCKSTEP_SIM_NCCL_FAIL=RANK:CALL; -1: none fails
  std::uint64_t nccl_fail_call = 0;
};

/// What is in force: at first, defaults and the environment.
Config config();

/// Waits for all streams, then changes the settings. Throws std::invalid_argument for ones that
/// make no sense.
void configure(const Config& config);

/// Drops what still waits in streams and forgets errors, sticky ones too, and captures under way.
/// Memory, streams and events live on. For tests that make kernels fail.
void reset();

/// What the process has made and not ended yet, by kind: "streams", "device memory", "NCCL
/// communicators", ... For tests that look for leaks.
std::map<std::string, std::size_t> living();

/// The settings that the environment asks for; throws std::invalid_argument naming the variable and
/// its bad value.
Config config_from_environment();

}  // namespace simt
