// The doctor's checks of GPUs, of made-up facts: good ones, bad ones, and what is unknown.

#include "lockstep/dist/doctor/gpu.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <fstream>

#include "dist/doctor/findings.h"
#include "support/device.h"
#include "support/temporary_folder.h"
#include "support/worlds.h"

using namespace lockstep;
using doctor::Finding;
using doctor::GpuJob;
using doctor::Surroundings;
using lockstep::test::check_bad;
using lockstep::test::check_good;
using lockstep::test::contains;

namespace {

using Daemon = Surroundings::Daemon;

/// Of a machine with two GPUs on which all is well.
gpu::Facts two_gpus() {
  gpu::Facts facts;
  facts.driver = 13000;
  facts.toolkit = 13000;
  facts.architectures = "80 90a";
  facts.oldest_capability = 80;
  facts.devices = {{"NVIDIA H200", 90}, {"NVIDIA H200", 90}};
  facts.apart.emplace();
  return facts;
}

Surroundings all_known() {
  Surroundings around;
  around.driver = "580.65.06";
  around.persistence = true;
  around.compute_mode = "Default";
  around.mps_folder = "/tmp/nvidia-mps";
  around.shared_memory = std::uint64_t{8} << 30U;
  return around;
}

/// Why CUDA finds no GPU.
gpu::Facts no_gpu(const std::string& trouble, int driver) {
  gpu::Facts facts = two_gpus();
  facts.devices.clear();
  facts.driver = driver;
  facts.trouble = trouble;
  return facts;
}

}  // namespace

TEST_CASE("doctor, GPUs: the driver against the toolkit") {
  gpu::Facts facts = two_gpus();
  check_good(doctor::check_driver(facts, all_known()),
             "driver 580.65.06 serves up to CUDA 13.0, this build is of CUDA 13.0");
  facts.toolkit = 13020;  // the same major version
  check_good(doctor::check_driver(facts, all_known()), "minor version compatibility");
  facts.toolkit = 12060;  // older than the driver
  const Finding older = doctor::check_driver(facts, {});
  check_good(older, "the driver serves up to CUDA 13.0, this build is of CUDA 12.6");
  CHECK_FALSE(contains(older.found, "compatibility"));
  facts.driver = 0;
  check_good(doctor::check_driver(facts, {}), "unknown version");

  facts = two_gpus();
  facts.driver = 12080;
  check_bad(doctor::check_driver(facts, {}), "up to CUDA 12.8, and this build is of CUDA 13.0",
            "Install driver 580 or newer, or build with a CUDA toolkit 12.x");
  facts.devices.clear();
  facts.trouble = "insufficient (cudaErrorInsufficientDriver)";
  check_bad(doctor::check_driver(facts, {}), "up to CUDA 12.8", "580 or newer");
  facts.driver = 11080;
  facts.toolkit = 12050;
  check_bad(doctor::check_driver(facts, {}), "up to CUDA 11.8", "525 or newer");
}

TEST_CASE("doctor, GPUs: there is none") {
  const std::string old = "CUDA driver version is insufficient (cudaErrorInsufficientDriver)";
  check_bad(doctor::check_driver(no_gpu(old, 0), {}), "there is no NVIDIA driver: " + old,
            "Install NVIDIA's driver, 580 or newer");
  check_bad(doctor::check_driver(no_gpu(old, 0), all_known()),
            "the kernel has driver 580.65.06, but its libcuda does not answer", "--gpus all");
  const std::pair<const char*, const char*> table[] = {
      {"cudaErrorNoDevice", "CUDA_VISIBLE_DEVICES"},
      {"cudaErrorSystemNotReady", "nvidia-fabricmanager"},
      {"cudaErrorSystemDriverMismatch", "restart the machine"},
      {"cudaErrorCompatNotSupportedOnDevice", "cuda-compat"},
      {"cudaErrorInitializationError", "see GPU queues and GPU loading"},
      {"cudaErrorUnknown", "dmesg"},
  };
  for (const auto& [error, advice] : table)
    check_bad(doctor::check_driver(no_gpu(error, 13000), {}), error, advice);
  // CUDA that does not start tells no version.
  gpu::Facts nothing = no_gpu("cudaErrorInitializationError", 0);
  nothing.toolkit = 0;
  const Finding unstarted = doctor::check_driver(nothing, {});
  check_bad(unstarted, "the driver finds no GPU: cudaErrorInitializationError", "GPU queues");
  CHECK_FALSE(contains(unstarted.found + unstarted.advice, "CUDA 0"));
  nothing.trouble = old;
  check_bad(doctor::check_driver(nothing, {}), "there is no NVIDIA driver", "driver, a recent one");
  // The checks of devices would speak of nothing, those of the environment may say why.
  Surroundings around = all_known();
  around.connections = "abc";
  around.silent = true;
  const auto found = doctor::check_gpus(no_gpu("cudaErrorNoDevice", 13000), around, {});
  REQUIRE(found.size() == 4);
  check_bad(found[1], "nvidia-smi did not answer in 10 s", "dmesg");
  check_bad(found[2], "CUDA_DEVICE_MAX_CONNECTIONS=abc", "unset it");
  const auto all = doctor::check_gpus(two_gpus(), all_known(), {.ranks = 2, .nccl = true});
  CHECK(all.size() == 8);
  for (const Finding& finding : all) check_good(finding);
}

TEST_CASE("doctor, GPUs: kernels for this compute capability") {
  using doctor::runs_on;
  for (const auto& [architecture, runs, does_not] :
       {std::tuple("80", 80, 75), std::tuple("80", 90, 70), std::tuple("80", 120, 75),
        std::tuple("86-real", 89, 80), std::tuple("80-real", 86, 90), std::tuple("90a", 90, 100),
        std::tuple("90a-real", 90, 89), std::tuple("100f", 103, 110),
        std::tuple("90-virtual", 120, 89)}) {
    CAPTURE(architecture);
    CHECK(runs_on(architecture, runs));
    CHECK_FALSE(runs_on(architecture, does_not));
  }
  CHECK(runs_on("native", 75));
  CHECK(runs_on("all-major", 75));

  gpu::Facts facts = two_gpus();
  check_good(doctor::check_capability(facts),
             "NVIDIA H200 is sm_90; this build has kernels for sm_80, sm_90a");
  facts.devices[1] = {"Tesla T4", 75};
  check_bad(doctor::check_capability(facts), "GPU 1, Tesla T4 is sm_75",
            "The kernels need sm_80 or newer");
  facts.devices[1] = {"NVIDIA A10", 86};
  facts.architectures = "90a";
  const Finding other = doctor::check_capability(facts);
  check_bad(other, "GPU 1, NVIDIA A10 is sm_86", "-DCMAKE_CUDA_ARCHITECTURES=86");
  CHECK_FALSE(contains(other.found, "H200"));
  facts.architectures = "";  // unknown
  check_good(doctor::check_capability(facts), "kernels for each");
}

TEST_CASE("doctor, GPUs: peers, with NCCL and without") {
  gpu::Facts facts = two_gpus();
  check_good(doctor::check_peer_access(facts, {}), "all 2 GPUs");
  facts.apart->emplace_back(0, 1);
  check_good(doctor::check_peer_access(facts, {.ranks = 2, .nccl = true}), "0 and 1");
  check_bad(doctor::check_peer_access(facts, {.ranks = 2, .nccl = false}), "0 and 1",
            "Install NCCL");
  check_good(doctor::check_peer_access(facts, {.ranks = 1, .nccl = false}), "0 and 1");
  facts.apart.reset();
  check_good(doctor::check_peer_access(facts, {}), "unknown");
  facts.devices.pop_back();
  check_good(doctor::check_peer_access(facts, {}), "one GPU");
}

TEST_CASE("doctor, GPUs: NCCL, and its room in a container") {
  gpu::Facts facts = two_gpus();
  Surroundings around = all_known();
  const GpuJob job{.ranks = 2, .nccl = true};
  check_good(doctor::check_nccl(facts, around, job), "8.0 GiB free");
  check_good(doctor::check_nccl(facts, around, {.ranks = 2}), "this build has none");
  check_bad(doctor::check_nccl(facts, around, {.ranks = 2, .several_machines = true}),
            "between machines", "libnccl-dev");
  check_good(doctor::check_nccl(facts, around, {.ranks = 3, .nccl = true}),
             "3 ranks on the 2 GPUs");
  around.shared_memory = 64U << 20U;
  check_bad(doctor::check_nccl(facts, around, job), "64.0 MiB free", "--shm-size=1g");
  check_good(doctor::check_nccl(facts, around, {.ranks = 1, .nccl = true}));  // needs none
  facts.simulated = true;
  check_good(doctor::check_nccl(facts, around, job));  // nor does this one
  facts.simulated = false;
  around.shared_memory.reset();
  check_good(doctor::check_nccl(facts, around, job), "unknown");
}

TEST_CASE("doctor, GPUs: compute mode and MPS") {
  const gpu::Facts facts = two_gpus();
  const GpuJob own{.ranks = 2}, shared{.ranks = 3};
  Surroundings around = all_known();
  check_good(doctor::check_sharing(facts, around, own), "compute mode Default, MPS does not run");
  check_good(doctor::check_sharing(facts, around, shared), "they take turns");
  around.compute_mode = "Exclusive_Process";
  check_good(doctor::check_sharing(facts, around, own));
  check_bad(doctor::check_sharing(facts, around, shared), "3 ranks on the 2 GPUs",
            "nvidia-smi -c DEFAULT");
  around.visible = "0";  // a launcher may have given each rank a GPU of its own
  check_good(doctor::check_sharing(facts, around, shared));
  around.visible.reset();
  around.mps = Daemon::running;
  const Finding with_mps = doctor::check_sharing(facts, around, shared);
  check_good(with_mps, "MPS runs");
  CHECK_FALSE(contains(with_mps.found, "turns"));
  around.mps = Daemon::unknown;
  check_good(doctor::check_sharing(facts, around, shared), "unknown whether MPS runs");
  around.compute_mode = "Prohibited";
  check_bad(doctor::check_sharing(facts, around, own), "Prohibited", "admits no process");
  around = Surroundings{};
  check_good(doctor::check_sharing(facts, around, own), "compute mode unknown");
  around.mps_named = true;
  around.mps_folder = "/somewhere";
  check_bad(doctor::check_sharing(facts, around, own), "/somewhere", "CUDA_MPS_PIPE_DIRECTORY");
  around.mps = Daemon::running;
  check_good(doctor::check_sharing(facts, around, own), "/somewhere");
}

TEST_CASE("doctor, GPUs: persistence, queues and loading") {
  Surroundings around = all_known();
  check_good(doctor::check_persistence(around), "on");
  around.persistence = false;
  check_good(doctor::check_persistence(around), "nvidia-smi -pm 1");
  around.persistence.reset();
  check_good(doctor::check_persistence(around), "unknown");

  check_good(doctor::check_queues(around), "not set: 8");
  for (const char* number : {"3", "32"}) {
    around.connections = number;
    check_good(doctor::check_queues(around), std::string("CUDA_DEVICE_MAX_CONNECTIONS=") + number);
  }
  for (const char* number : {"1", "2"}) {
    around.connections = number;
    check_bad(doctor::check_queues(around), number, "A rank has 3 streams");
  }
  for (const char* wrong : {"0", "33", "-1", "many"}) {
    around.connections = wrong;
    check_bad(doctor::check_queues(around), wrong, "a number from 1 to 32");
  }

  check_good(doctor::check_loading(around), "not set");
  for (const auto& [word, says] :
       {std::pair("LAZY", "threads"), std::pair("EAGER", "when CUDA starts"),
        std::pair("DEFAULT", "first launch")}) {
    around.loading = word;
    check_good(doctor::check_loading(around), says);
  }
  around.loading = "eager";
  check_bad(doctor::check_loading(around), "eager", "LAZY, EAGER or DEFAULT");
}

TEST_CASE("doctor, GPUs: memory") {
  constexpr std::uint64_t mib = 1U << 20U;
  CHECK(doctor::memory_needed(2, 5 * mib) == 30 * mib);
  CHECK(doctor::lacking_memory(gpu::Memory{30 * mib, 80 * mib}, 2, 5 * mib) == "");
  CHECK(doctor::lacking_memory({}, 2, 5 * mib) == "");
  CHECK(doctor::lacking_memory(gpu::Memory{30 * mib - 1, 80 * mib}, 2, 5 * mib) ==
        "its GPU has 30.0 MiB free of 80.0 MiB, and 2 ranks with 5.0 MiB of gradients need 30.0 "
        "MiB");
}

TEST_CASE("doctor, GPUs: containers") {
  using doctor::judge_places;
  check_good(judge_places({{"a", "pid:[1]"}, {"a", "pid:[1]"}, {"b", "pid:[2]"}}, false), "share");
  check_good(judge_places({{"b", "pid:[1]"}, {"b", "pid:[2]"}}, true), "NCCL serves");
  check_bad(judge_places({{"a", "pid:[1]"}, {"b", "pid:[1]"}, {"b", "pid:[2]"}}, false),
            "ranks 1 and 2", "--pid=container");
  check_good(judge_places({{"a", "pid:[1]"}, {"a", ""}}, false), "unknown");
  check_good(judge_places({{"", "pid:[1]"}, {"", "pid:[2]"}}, false), "unknown");
  run_threads(2, {}, [](World& world) {
    const Finding here = doctor::check_containers(world);
    check<Error>(here.good && contains(here.found, "share a PID namespace"), "{}",
                 doctor::to_text(here));
  });
}

TEST_CASE("doctor, GPUs: what the system says") {
  Surroundings around;
  doctor::read_nvidia_smi("Enabled, Default\nEnabled, Default\n", around);
  CHECK(around.persistence == true);
  CHECK(around.compute_mode == "Default");
  doctor::read_nvidia_smi("Enabled, Exclusive_Process\r\nDisabled, Default\r\n", around);
  CHECK(around.persistence == false);
  CHECK(around.compute_mode == "Exclusive_Process");
  around = Surroundings{};
  doctor::read_nvidia_smi("[N/A], [N/A]\nNVIDIA-SMI has failed\n", around);
  CHECK(!around.persistence);
  CHECK(around.compute_mode == "");

  const test::TemporaryFolder folder;
  const auto look = [&] {
    return doctor::look_around(test::from({{"CUDA_MPS_PIPE_DIRECTORY", folder.path().string()},
                                           {"CUDA_DEVICE_MAX_CONNECTIONS", "4"},
                                           {"CUDA_MODULE_LOADING", "LAZY"}}));
  };
  around = look();
  CHECK(around.mps == Daemon::absent);
  CHECK(around.mps_named);
  CHECK(around.mps_folder == folder.path().string());
  CHECK(around.connections == "4");
  CHECK(around.loading == "LAZY");
  std::ofstream(folder / "nvidia-cuda-mps-control.pid") << ::getpid() << "\n";
  CHECK(look().mps == Daemon::running);
  std::ofstream(folder / "nvidia-cuda-mps-control.pid") << "2000000000\n";  // no process's
  CHECK(look().mps == Daemon::unknown);
  around = doctor::look_around(test::from({}));
  CHECK_FALSE(around.mps_named);
  CHECK(around.mps_folder == "/tmp/nvidia-mps");
  CHECK(!around.connections);
  CHECK(!around.loading);
}

TEST_CASE("doctor, GPUs: a GPU that refuses work, after the ranks had joined") {
  check_bad(doctor::explain_loss(DeviceError("no kernel image")), "no kernel image", "xid");
  check_bad(doctor::explain_loss(CommError("gone")), "gone", "its own message");
}

TEST_CASE("doctor, GPUs: worlds in which all is well, with tensors on the device") {
  if (test::on_cpu()) return;
  for (const int ranks : {1, 2})
    run_threads(ranks, {}, [](World& world) {
      const Device device = test::test_device();
      for (const Finding& finding :
           {doctor::check_gpu_memory(world, device, 1U << 20U),
            doctor::check_all_reduce(world, device), doctor::check_gradients(world, device)})
        check<Error>(finding.good, "{}", doctor::to_text(finding));
      const Finding full = doctor::check_gpu_memory(world, device, std::uint64_t{1} << 50U);
      check<Error>(!full.good && contains(full.found, "rank 0: its GPU has") &&
                       contains(full.advice, "nvidia-smi"),
                   "{}", doctor::to_text(full));
    });
  const gpu::Facts facts = gpu::facts();
  CHECK(facts.trouble == "");
  CHECK(facts.driver >= facts.toolkit / 1000 * 1000);
  CHECK(!facts.devices.empty());
  CHECK(facts.devices[0].capability >= facts.oldest_capability);
  const auto memory = gpu::memory(0);
  REQUIRE(memory);
  CHECK(memory->free > 0);
  CHECK(memory->free <= memory->total);
  CHECK(!gpu::memory(1 << 20));
}
