// The checks of this machine's GPUs: pure functions of facts.

#include "lockstep/dist/doctor/gpu.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <utility>

#include "lockstep/core/text/number.h"
#include "lockstep/dist/doctor/bytes.h"

namespace lockstep::doctor {
namespace {

/// "12.5" of 12050.
std::string version(int cuda) { return fmt::format("{}.{}", cuda / 1000, cuda % 1000 / 10); }

/// What to do if CUDA finds no GPU, by the name of its error.
constexpr std::pair<std::string_view, std::string_view> advice_on_trouble[] = {
    {"cudaErrorNoDevice",
     "Does nvidia-smi list GPUs? CUDA_VISIBLE_DEVICES may hide them; a container needs docker run "
     "--gpus all. Without a GPU: --device sim, or cpu."},
    {"cudaErrorSystemNotReady",
     "GPUs with NVSwitch need NVIDIA's fabric manager: systemctl start nvidia-fabricmanager."},
    {"cudaErrorSystemDriverMismatch",
     "The driver in the kernel and libcuda are of different versions: restart the machine after an "
     "update of the driver; in a container, remove its own libcuda."},
    {"cudaErrorCompatNotSupportedOnDevice",
     "Take the folder of cuda-compat off LD_LIBRARY_PATH, or update the driver."},
    {"cudaErrorInitializationError",
     "CUDA does not start: see GPU queues and GPU loading. If they are well: dmesg | grep NVRM."},
};

/// The oldest driver that serves all toolkits of a major version:
/// docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
std::string driver_for(int toolkit) {
  const int major = toolkit / 1000;
  if (major == 12) return "525 or newer";
  if (major == 13) return "580 or newer";
  return major == 0 ? "a recent one" : fmt::format("for CUDA {}", major);
}

/// CUDA's own words for a machine without a driver, whose version it then calls 0.
bool says_no_driver(const gpu::Facts& facts) {
  return facts.driver == 0 &&
         (facts.trouble.find("cudaErrorInsufficientDriver") != facts.trouble.npos ||
          facts.trouble.find("cudaErrorStubLibrary") != facts.trouble.npos);
}

// Where a launcher shows each rank the GPU that is meant for it alone, this is not known.
bool is_shared(const gpu::Facts& facts, const Surroundings& around, int ranks) {
  return !around.visible && static_cast<std::size_t>(ranks) > facts.devices.size();
}

/// A rank may see fewer GPUs than there are, if its launcher gave it some of them.
std::string sharers(const gpu::Facts& facts, int ranks) {
  const std::size_t devices = facts.devices.size();
  return fmt::format("{} ranks on the {} GPU{} that this rank sees", ranks, devices,
                     devices == 1 ? "" : "s");
}

}  // namespace

Finding check_driver(const gpu::Facts& facts, const Surroundings& around) {
  Finding finding{.check = "GPU driver", .found = {}, .advice = {}};
  const std::string name = "driver" + (around.driver.empty() ? "" : " " + around.driver);
  const bool none = facts.devices.empty();
  const std::string build =
      facts.toolkit == 0 ? "" : fmt::format(", this build is of CUDA {}", version(facts.toolkit));
  if (none && says_no_driver(facts)) {
    finding.good = false;
    finding.found = around.driver.empty()
                        ? fmt::format("there is no NVIDIA driver: {}", facts.trouble)
                        : fmt::format("the kernel has {}, but its libcuda does not answer: {}",
                                      name, facts.trouble);
    finding.advice = fmt::format(
        "Install NVIDIA's driver, {}: nvidia-smi must list the GPUs. A container needs NVIDIA's "
        "Container Toolkit and docker run --gpus all. Without a GPU: --device sim, or cpu.",
        driver_for(facts.toolkit));
  } else if (facts.driver != 0 && facts.driver / 1000 < facts.toolkit / 1000) {
    finding.good = false;
    finding.found = fmt::format("the {} serves up to CUDA {}, and this build is of CUDA {}", name,
                                version(facts.driver), version(facts.toolkit));
    finding.advice = fmt::format(
        "Install driver {}, or build with a CUDA toolkit {}.x (CUDACXX names its nvcc).",
        driver_for(facts.toolkit), facts.driver / 1000);
  } else if (none) {
    finding.good = false;
    finding.found = fmt::format("the {} finds no GPU: {}", name, facts.trouble);
    finding.advice = "Does nvidia-smi work? The kernel's log may say why not: dmesg | grep NVRM.";
    for (const auto& [error, advice] : advice_on_trouble)
      if (facts.trouble.find(error) != std::string::npos) finding.advice = advice;
  } else if (facts.driver == 0) {
    finding.found = fmt::format("the {} serves an unknown version of CUDA{}", name, build);
  } else {
    finding.found = fmt::format(
        "the {} serves up to CUDA {}{}{}", name, version(facts.driver), build,
        facts.driver < facts.toolkit ? " (within CUDA's minor version compatibility)" : "");
  }
  return finding;
}

// "80" stands for machine code, for the same major version from this minor one on, and for PTX,
// which the driver compiles for anything newer. An "a" binds both to this very architecture, an "f"
// to the major version. (nvcc's manual, "GPU Compilation".)
bool runs_on(std::string_view architecture, int capability) {
  const std::size_t digits =
      std::min(architecture.find_first_not_of("0123456789"), architecture.size());
  const auto made_for = parse_number<int>(architecture.substr(0, digits));
  if (!made_for) return true;  // "native", "all": chosen by nvcc
  const std::string_view rest = architecture.substr(digits);
  if (rest.starts_with("a")) return capability == *made_for;
  const bool same_major = capability / 10 == *made_for / 10;
  if (rest.starts_with("f") || rest == "-real") return same_major && capability >= *made_for;
  return capability >= *made_for;
}

Finding check_capability(const gpu::Facts& facts) {
  Finding finding{.check = "GPU kernels", .found = {}, .advice = {}};
  std::vector<std::string> architectures, without;
  std::istringstream words = classic_stream(facts.architectures);
  for (std::string word; words >> word;) architectures.push_back(word);
  std::set<std::string> kinds;
  int lowest = 0;  // compute capability without kernels
  for (std::size_t i = 0; i < facts.devices.size(); ++i) {
    const int capability = facts.devices[i].capability;
    const std::string kind = fmt::format("{} is sm_{}", facts.devices[i].name, capability);
    kinds.insert(kind);
    if (architectures.empty() || std::ranges::any_of(architectures, [&](const std::string& one) {
          return runs_on(one, capability);
        }))
      continue;
    without.push_back(fmt::format("GPU {}, {}", i, kind));
    lowest = lowest == 0 ? capability : std::min(lowest, capability);
  }
  finding.good = without.empty();
  const std::string made_for =
      architectures.empty() ? "each" : fmt::format("sm_{}", fmt::join(architectures, ", sm_"));
  finding.found = finding.good ? fmt::format("{}; this build has kernels for {}",
                                             fmt::join(kinds, ", "), made_for)
                               : fmt::format("{}; this build has kernels for {} alone",
                                             fmt::join(without, "; "), made_for);
  if (finding.good) return finding;
  if (lowest < facts.oldest_capability)
    finding.advice = fmt::format(
        "The kernels need sm_{} or newer: choose other GPUs (CUDA_VISIBLE_DEVICES), or --device "
        "cpu or sim.",
        facts.oldest_capability);
  else
    finding.advice = fmt::format(
        "Build for it: remove build/cuda and start ./lockstep here again, or give cmake "
        "-DCMAKE_CUDA_ARCHITECTURES={}.",
        lowest);
  return finding;
}

Finding check_peer_access(const gpu::Facts& facts, const GpuJob& job) {
  Finding finding{.check = "GPU peers", .found = {}, .advice = {}};
  const std::size_t devices = facts.devices.size();
  if (devices < 2) {
    finding.found = "there is one GPU";
  } else if (!facts.apart) {
    finding.found = "unknown: CUDA does not say whether GPUs address each other's memory";
  } else if (facts.apart->empty()) {
    finding.found = fmt::format("all {} GPUs address each other's memory", devices);
  } else {
    std::vector<std::string> pairs;
    for (const auto& [one, other] : *facts.apart)
      pairs.push_back(fmt::format("{} and {}", one, other));
    finding.found = fmt::format(
        "these pairs of GPUs cannot address each other's memory: {} (nvidia-smi topo "
        "-p2p r says why)",
        fmt::join(pairs, ", "));
    finding.good = job.nccl || job.ranks < 2;
    if (finding.good)
      finding.found += "; between them NCCL goes through the host's memory";
    else
      finding.advice =
          "Install NCCL (libnccl-dev) and build again, or let CUDA_VISIBLE_DEVICES name GPUs that "
          "can: otherwise gradients are copied to the host and back.";
  }
  return finding;
}

// NCCL's guide asks for --shm-size=1g in a container, where /dev/shm has 64 MiB:
// docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
Finding check_nccl(const gpu::Facts& facts, const Surroundings& around, const GpuJob& job) {
  constexpr std::uint64_t asked_for = 1U << 30U;
  Finding finding{.check = "NCCL", .found = {}, .advice = {}};
  if (!job.nccl) {
    finding.good = !job.several_machines;
    finding.found = job.several_machines
                        ? "this build has none: between machines gradients are copied to the host"
                        : "this build has none: kernels of ours read the other ranks' memory";
    if (!finding.good) finding.advice = "Install libnccl-dev (or set NCCL_ROOT) and build again.";
    return finding;
  }
  if (is_shared(facts, around, job.ranks)) {
    finding.found = fmt::format("{}: NCCL needs one for each, so kernels of ours carry gradients",
                                sharers(facts, job.ranks));
    return finding;
  }
  finding.found = around.visible
                      ? "this build has it; CUDA_VISIBLE_DEVICES says which GPUs are seen"
                      : "this build has it, and each rank a GPU";
  if (facts.simulated || job.ranks < 2) return finding;
  if (!around.shared_memory) {
    finding.found += "; the room in /dev/shm is unknown";
    return finding;
  }
  finding.good = *around.shared_memory >= asked_for;
  finding.found += fmt::format("; /dev/shm has {} free", gib(*around.shared_memory));
  if (!finding.good)
    finding.advice =
        "NCCL's guide asks for 1 GiB: docker run --shm-size=1g --ulimit memlock=-1, or --ipc=host.";
  return finding;
}

// A compute mode other than Default refuses processes: CUDA Programming Guide, "Compute Modes". A
// process that does not reach MPS's daemon runs without it: the manual of nvidia-cuda-mps-control.
Finding check_sharing(const gpu::Facts& facts, const Surroundings& around, const GpuJob& job) {
  using Daemon = Surroundings::Daemon;
  Finding finding{.check = "GPU sharing", .found = {}, .advice = {}};
  const bool shared = is_shared(facts, around, job.ranks), absent = around.mps == Daemon::absent;
  const std::string mode = around.compute_mode.empty() ? "unknown" : around.compute_mode;
  const std::string mps = around.mps == Daemon::running ? "MPS runs"
                          : absent                      ? "MPS does not run"
                                                        : "unknown whether MPS runs";
  finding.found = fmt::format("compute mode {}, {} ({})", mode, mps, around.mps_folder);
  if (mode == "Prohibited") {
    finding.good = false;
    finding.advice = "It admits no process: nvidia-smi -c DEFAULT, as root.";
  } else if (shared && absent && mode.starts_with("Exclusive")) {
    finding.good = false;
    finding.found += fmt::format("; {}", sharers(facts, job.ranks));
    finding.advice =
        "It admits one process on each GPU: nvidia-smi -c DEFAULT, as root; or start MPS, "
        "nvidia-cuda-mps-control -d.";
  } else if (absent && around.mps_named) {
    finding.good = false;
    finding.advice =
        "CUDA_MPS_PIPE_DIRECTORY asks for MPS: start it with nvidia-cuda-mps-control -d and the "
        "same variable, or unset the variable.";
  } else if (shared && absent) {
    finding.found += fmt::format(
        "; {}, and they take turns: with nvidia-cuda-mps-control -d their kernels run together",
        sharers(facts, job.ranks));
  }
  return finding;
}

Finding check_answers(const Surroundings& around) {
  Finding finding{.check = "GPU driver", .good = !around.silent, .found = {}, .advice = {}};
  finding.found = around.silent ? "nvidia-smi did not answer in 10 s" : "it answers";
  if (around.silent)
    finding.advice =
        "The driver may hang (dmesg | grep NVRM, then restart the machine), or takes long to start "
        "each time: nvidia-smi -pm 1, as root, or nvidia-persistenced.";
  return finding;
}

// docs.nvidia.com/deploy/driver-persistence
Finding check_persistence(const Surroundings& around) {
  Finding finding{.check = "GPU persistence", .found = "on", .advice = {}};
  if (!around.persistence)
    finding.found = "unknown: nvidia-smi does not say";
  else if (!*around.persistence)
    finding.found =
        "off: where nothing else uses a GPU, each job first waits for the driver to start it "
        "(nvidia-smi -pm 1, as root, or nvidia-persistenced)";
  return finding;
}

// 1 to 32, without the variable 8: CUDA Programming Guide, "CUDA Environment Variables".
Finding check_queues(const Surroundings& around) {
  constexpr int streams = 3;  // of a rank: it computes, it reads, its communicator's
  Finding finding{.check = "GPU queues", .found = {}, .advice = {}};
  if (!around.connections) {
    finding.found = "CUDA_DEVICE_MAX_CONNECTIONS is not set: 8";
    return finding;
  }
  const auto queues = parse_number<int>(*around.connections);
  finding.found = fmt::format("CUDA_DEVICE_MAX_CONNECTIONS={}", *around.connections);
  finding.good = queues && *queues >= streams && *queues <= 32;
  if (finding.good) return finding;
  finding.advice =
      queues && *queues >= 1 && *queues < streams
          ? fmt::format(
                "A rank has {} streams; those that share a queue wait for each other, and "
                "gradients do not travel during backward: unset it, or set 8 to 32.",
                streams)
          : "It must be a number from 1 to 32: unset it, or set 8 to 32.";
  return finding;
}

// CUDA Programming Guide, "Lazy Loading".
Finding check_loading(const Surroundings& around) {
  Finding finding{.check = "GPU loading", .found = {}, .advice = {}};
  const std::string word = around.loading.value_or("");
  finding.good = word.empty() || word == "DEFAULT" || word == "LAZY" || word == "EAGER";
  finding.found =
      word.empty() ? "CUDA_MODULE_LOADING is not set" : fmt::format("CUDA_MODULE_LOADING={}", word);
  if (!finding.good)
    finding.advice = "It must be LAZY, EAGER or DEFAULT: unset it.";
  else if (word == "EAGER")
    finding.found += ": kernels are loaded when CUDA starts";
  else if (word == "LAZY")
    finding.found +=
        ": kernels are loaded at their first launch; ranks that are threads and share a GPU need "
        "EAGER";
  else
    finding.found += ": kernels are loaded at their first launch";
  return finding;
}

std::uint64_t memory_needed(int ranks, std::uint64_t bytes) {
  return 3 * bytes * static_cast<std::uint64_t>(ranks);
}

std::string lacking_memory(std::optional<gpu::Memory> memory, int ranks, std::uint64_t bytes) {
  const std::uint64_t needed = memory_needed(ranks, bytes);
  if (!memory || memory->free >= needed) return "";
  return fmt::format("its GPU has {} free of {}, and {} rank{} with {} of gradients need {}",
                     gib(memory->free), gib(memory->total), ranks, ranks == 1 ? "" : "s",
                     gib(bytes), gib(needed));
}

// CUDA opens memory of processes in its own PID namespace alone. "Legacy CUDA IPC handles cannot be
// exchanged across PID namespaces": github.com/openucx/ucx/pull/11514. Measured with Kubernetes,
// where IPC namespaces and privileges did not matter:
// harche.github.io/2025/10/15/kubernetes-cuda-ipc-permissions.html. NCCL, too, knows a machine by
// its boot_id: github.com/NVIDIA/nccl/pull/248. Nobody needs the right to trace (ptrace,
// pidfd_getfd): descriptors travel over sockets.
Finding judge_places(const std::vector<Place>& places, bool nccl) {
  Finding finding{.check = "containers", .found = {}, .advice = {}};
  finding.found = "ranks of one machine share a PID namespace, as CUDA IPC needs it";
  if (std::ranges::any_of(places, [](const Place& place) {
        return place.machine.empty() || place.processes.empty();
      })) {
    finding.found = "unknown: /proc does not say which ranks share a machine and a PID namespace";
    return finding;
  }
  for (std::size_t r = 0; r < places.size(); ++r)
    for (std::size_t q = 0; q < r && finding.good; ++q) {
      if (places[q].machine != places[r].machine || places[q].processes == places[r].processes)
        continue;
      finding.found =
          fmt::format("ranks {} and {} are on one machine, in different PID namespaces", q, r);
      if (nccl) {
        finding.found += ": between them NCCL serves, and transport ipc does not";
        return finding;
      }
      finding.good = false;
      finding.advice =
          "CUDA IPC does not work between them: start the ranks of a machine in one container, or "
          "let its containers share their processes (docker run --pid=container:NAME; Kubernetes: "
          "shareProcessNamespace).";
    }
  return finding;
}

std::vector<Finding> check_gpus(const gpu::Facts& facts, const Surroundings& around,
                                const GpuJob& job) {
  std::vector<Finding> findings{check_driver(facts, around)};
  if (around.silent) findings.push_back(check_answers(around));
  if (!facts.devices.empty())
    for (const Finding& finding :
         {check_capability(facts), check_peer_access(facts, job), check_nccl(facts, around, job),
          check_sharing(facts, around, job), check_persistence(around)})
      findings.push_back(finding);
  findings.push_back(check_queues(around));
  findings.push_back(check_loading(around));
  return findings;
}

}  // namespace lockstep::doctor
