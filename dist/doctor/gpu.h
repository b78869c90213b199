#pragma once
/// Can jobs train on the GPUs of this machine? Facts are gathered in two places (gpu::facts() asks
/// CUDA, look_around() the system); the checks are pure functions of them.
///
///   for (const doctor::Finding& finding :
///        doctor::check_gpus(gpu::facts(), doctor::look_around(get), {.ranks = 4}))
///     fmt::print("{}\n", doctor::to_text(finding));
///
/// What cannot be known is called unknown, and is not bad. Errors: none of these functions throws
/// for what it finds. Thread-safety: any thread may call them; those of a World are collective and
/// belong to its thread.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/gpu/facts.h"
#include "lockstep/dist/doctor/doctor.h"

namespace lockstep::doctor {

/// What the system says of its GPUs, apart from CUDA.
struct Surroundings {
  enum class Daemon { absent, running, unknown };

  std::string driver;               ///< of the kernel: "580.65.06"; empty: unknown
  bool silent = false;              ///< nvidia-smi did not answer in 10 seconds
  std::optional<bool> persistence;  ///< persistence mode of all GPUs; nothing: unknown
  std::string compute_mode;     ///< the strictest of all GPUs: "Exclusive_Process"; empty: unknown
  Daemon mps = Daemon::absent;  ///< NVIDIA's Multi-Process Service
  std::string mps_folder;       ///< where it is looked for
  bool mps_named = false;       ///< by CUDA_MPS_PIPE_DIRECTORY
  std::optional<std::uint64_t> shared_memory;  ///< bytes free in /dev/shm; nothing: unknown
  std::optional<std::string> visible;          ///< CUDA_VISIBLE_DEVICES
  std::optional<std::string> connections;      ///< CUDA_DEVICE_MAX_CONNECTIONS
  std::optional<std::string> loading;          ///< CUDA_MODULE_LOADING
};

/// Reads the environment, /proc, MPS's folder, and what nvidia-smi prints if it is on the PATH.
/// That may take 14 seconds: others must not wait for it meanwhile (ranks have timeouts).
Surroundings look_around(const dist::Getenv& get);
/// The lines of `nvidia-smi --query-gpu=persistence_mode,compute_mode --format=csv,noheader`, one
/// for each GPU: sets these two facts, as far as the text has them.
void read_nvidia_smi(const std::string& text, Surroundings& around);

/// The job that is to be.
struct GpuJob {
  int ranks = 2;                  ///< on this machine
  bool several_machines = false;  ///< with ranks on others too
  bool nccl = false;              ///< this build has NCCL
};

/// There are GPUs, and the driver is new enough for the CUDA toolkit of this build.
Finding check_driver(const gpu::Facts& facts, const Surroundings& around);
/// This build has kernels for each GPU.
Finding check_capability(const gpu::Facts& facts);
/// Whether kernels for an architecture, as CMAKE_CUDA_ARCHITECTURES says it ("80", "90a",
/// "86-real"), run on a GPU of this compute capability, 10 * major + minor.
bool runs_on(std::string_view architecture, int capability);
/// GPUs of this machine address each other's memory. Bad only where NCCL cannot help out.
Finding check_peer_access(const gpu::Facts& facts, const GpuJob& job);
/// What carries gradients between GPUs, and whether NCCL finds room in /dev/shm.
Finding check_nccl(const gpu::Facts& facts, const Surroundings& around, const GpuJob& job);
/// The GPUs accept as many processes as there are ranks: compute mode, and MPS.
Finding check_sharing(const gpu::Facts& facts, const Surroundings& around, const GpuJob& job);
/// nvidia-smi answers.
Finding check_answers(const Surroundings& around);
/// Whether the driver stays loaded between jobs. Never bad: it only costs time.
Finding check_persistence(const Surroundings& around);
/// CUDA_DEVICE_MAX_CONNECTIONS leaves each stream of a rank a hardware queue.
Finding check_queues(const Surroundings& around);
/// CUDA_MODULE_LOADING is a word that CUDA knows.
Finding check_loading(const Surroundings& around);
/// The checks above; check_answers only if it is bad. If there is no GPU, only those of the driver
/// and of what the environment says to it.
std::vector<Finding> check_gpus(const gpu::Facts& facts, const Surroundings& around,
                                const GpuJob& job);

// --- A world: collective, the same findings on every rank ---

/// Each rank's GPU has room for parameters, gradients and momentum of the ranks that share it:
/// `bytes` each. CUDA makes a context on `device`, this rank's.
Finding check_gpu_memory(const World& world, Device device, std::uint64_t bytes);
/// What that takes on a GPU which `ranks` ranks share, in bytes. Pure functions, as the next.
std::uint64_t memory_needed(int ranks, std::uint64_t bytes);
/// What a GPU lacks of it; empty if nothing, or if that is not known.
std::string lacking_memory(std::optional<gpu::Memory> memory, int ranks, std::uint64_t bytes);

/// Where a rank runs.
struct Place {
  std::string machine;    ///< the kernel's boot_id, alike in all containers of a machine
  std::string processes;  ///< the PID namespace: "pid:[4026531836]"
};
/// Ranks of one machine are where CUDA lets them share memory.
Finding check_containers(const World& world);
/// Of each rank's place. With NCCL they need not be. A pure function.
Finding judge_places(const std::vector<Place>& places, bool nccl);

}  // namespace lockstep::doctor
