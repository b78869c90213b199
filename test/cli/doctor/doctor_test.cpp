// `lockstep doctor` through the front door: what is planted is found, named, and advice is given.
// (A model and a device are a program's own: test/dist/doctor/doctor_test.cpp.)

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/core/gpu/gpu.h"
#include "lockstep/dist/rendezvous/endpoint.h"
#include "support/free_address.h"
#include "support/program.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using lockstep::test::contains;
using lockstep::test::Ended;
using lockstep::test::free_address;
using lockstep::test::free_port;
using lockstep::test::own_host;
using lockstep::test::TemporaryFolder;

namespace {

Ended shell(const std::string& text) { return test::run({"/bin/sh", "-c", text}); }

/// A rank's command in `folder`, which it may write to.
std::string doctor_in(const std::string& folder, const std::string& options = "--gradients-mb 1") {
  return fmt::format("'{}/lockstep_doctor' --device cpu --folder '{}' --timeout 3 {}",
                     LOCKSTEP_BIN_DIR, folder, options);
}
std::string doctor_in(const TemporaryFolder& folder,
                      const std::string& options = "--gradients-mb 1") {
  return doctor_in(folder.path().string(), options);
}

/// The variables of a rank that is started by hand.
std::string by_hand(int rank, int size, int port) {
  return fmt::format(
      "RANK={0} LOCAL_RANK={0} WORLD_SIZE={1} LOCAL_WORLD_SIZE={1} MASTER_ADDR={2} "
      "MASTER_PORT={3}",
      rank, size, own_host(), port);
}

/// It is the only problem, on a line that says `found`; the next line says `advice`.
void check_found(const Ended& ended, const std::string& check, const std::string& found,
                 const std::string& advice) {
  CAPTURE(ended.out);
  CAPTURE(ended.err);
  CHECK(ended.code == 1);
  CHECK(test::count(ended.out, "PROBLEM") == 1);
  CHECK(contains(ended.out, "There is 1 problem.\n"));
  const std::size_t begin = ended.out.find("PROBLEM " + check + ": ");
  REQUIRE(begin != std::string::npos);
  const std::size_t end = ended.out.find('\n', begin);
  CHECK(contains(ended.out.substr(begin, end - begin), found));
  CHECK(contains(ended.out.substr(end, ended.out.find('\n', end + 1) - end), advice));
}

}  // namespace

TEST_CASE("doctor: through the front door, where nothing is wrong") {
  const TemporaryFolder folder;
  const Ended well = shell(doctor_in(folder, fmt::format("--json '{}'", folder / "json")));
  INFO(well.out, well.err);
  CHECK(well.code == 0);
  CHECK(test::count(well.out, "ok      ") == 10);
  CHECK(contains(well.out, "Nothing is wrong.\n"));
  const auto json = nlohmann::json::parse(std::ifstream(folder / "json"));
  CHECK(json.size() == 10);
  for (const auto& finding : json) CHECK(finding.at("good") == true);
}

TEST_CASE("doctor: through the front door, limits of the machine") {
  const TemporaryFolder folder;
  check_found(shell("ulimit -n 40; exec " + doctor_in(folder)), "descriptors", "40 may be open",
              "ulimit -n 66");
  check_found(shell("exec " + doctor_in("/proc")), "folder", "'/proc' cannot be written",
              "Give --folder a folder");
  // More gradients than any machine holds.
  const Ended large = shell("exec " + doctor_in(folder, "--gradients-mb 9e8 --ranks 1"));
  CHECK(large.code == 1);
  CHECK(contains(large.out, "PROBLEM shared memory: "));
  CHECK(contains(large.out, "Fewer ranks, a smaller model"));
  const Ended too_large = shell("exec " + doctor_in(folder, "--gradients-mb 1e12"));
  CHECK(too_large.code == 2);
  CHECK(contains(too_large.err, "1000000000000"));
  // A small /dev/shm is no fault: ranks share memory of no folder.
  const std::string mount = "mount -t tmpfs -o size=1M none /dev/shm";
  if (shell("unshare --mount sh -c '" + mount + "'").code != 0) {
    MESSAGE("skipped: this user may not mount");
    return;
  }
  const Ended small = shell(fmt::format("exec unshare --mount sh -c \"{}; exec {}\"", mount,
                                        doctor_in(folder, "--gradients-mb 20")));
  CAPTURE(small.out);
  CHECK(small.code == 0);
}

TEST_CASE("doctor: through the front door, what another machine lacks") {
  const TemporaryFolder folder;
  const std::string address = free_address();
  const auto rank = [&](int r, const std::string& where) {
    return fmt::format(
        "RANK={} WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 "
        "LOCKSTEP_RENDEZVOUS={} {}",
        r, address, doctor_in(where));
  };
  const Ended ended =
      shell(fmt::format("{} & {} --json '{}'; code=$?; wait; exit $code", rank(1, "/proc"),
                        rank(0, folder.path().string()), folder / "json"));
  check_found(ended, "folder", "rank 1's machine: '/proc' cannot be written",
              "Give --folder a folder");
  const auto json = nlohmann::json::parse(std::ifstream(folder / "json"));
  CHECK(json.size() == 11);  // rank 0's, with what the other one has found
}

TEST_CASE("doctor: through the front door, ranks that do not come together") {
  const TemporaryFolder folder;
  const std::string doctor = doctor_in(folder);
  const int port = free_port();
  // One is missing: the world is larger than the number of processes.
  check_found(shell(fmt::format("{1} {0} >/dev/null 2>&1 & {2} {0}; code=$?; wait; exit $code",
                                doctor, by_hand(1, 3, port), by_hand(0, 3, port))),
              "joining", "rank 2 is missing", "is WORLD_SIZE the number of processes");
  // One has another idea of the world.
  const Ended other =
      shell(fmt::format("{1} {0} >'{3}' 2>&1 & {2} {0}; code=$?; wait; exit $code", doctor,
                        by_hand(1, 3, port), by_hand(0, 2, port), folder / "rank1"));
  CHECK(other.code == 1);
  CHECK(contains(other.out, "PROBLEM joining: "));
  CHECK(contains(other.out, "WORLD_SIZE"));
  // Two have the same rank.
  const Ended twice =
      shell(fmt::format("for i in 1 1; do {1} {0} & done; {2} {0}; code=$?; wait; exit $code",
                        doctor, by_hand(1, 3, port), by_hand(0, 3, port)));
  CHECK(twice.code == 1);
  CHECK(contains(twice.out, "rank 1 has joined twice"));
  CHECK(contains(twice.out, "give each its own"));
  check_found(shell(fmt::format("{} WORLD_SIZE=1 exec {}", by_hand(1, 2, port), doctor)),
              "environment", "WORLD_SIZE", "Every rank needs RANK");
}

TEST_CASE("doctor: through the front door, ranks that have joined and then differ") {
  const TemporaryFolder folder;
  const int port = free_port();
  const Ended other = shell(fmt::format(
      "{1} {0} --comm ring >/dev/null 2>&1 & {2} {0} --comm direct --json '{3}'; code=$?; wait; "
      "exit $code",
      doctor_in(folder), by_hand(1, 2, port), by_hand(0, 2, port), folder / "json"));
  check_found(other, "world", "rank 1", "other options (--comm, --transport)");
  // What was found before is not lost.
  CHECK(contains(other.out, "ok      folder: "));
  CHECK(nlohmann::json::parse(std::ifstream(folder / "json")).size() > 5);
}

TEST_CASE("doctor: through the front door, a place where ranks cannot meet") {
  const TemporaryFolder folder;
  const dist::Descriptor stranger = dist::listen_on(dist::Endpoint::parse("127.0.0.1:0"));
  const int port = dist::local_port(stranger.get());
  const Ended taken = shell(fmt::format("{} LOCKSTEP_RENDEZVOUS=127.0.0.1:{} exec {}",
                                        by_hand(0, 2, port), port, doctor_in(folder)));
  INFO(taken.out, taken.err);
  CHECK(taken.code == 1);
  CHECK(contains(taken.out, fmt::format("127.0.0.1:{}", port)));
  CHECK(contains(taken.out, "choose another MASTER_PORT"));

  // A socket that a killed job has left is replaced, and the doctor says so; of a living one it
  // says whose it is.
  const std::string socket = folder / "socket";
  const auto meet = [&](int rank) {
    return fmt::format("{} LOCKSTEP_RENDEZVOUS='unix:{}' {}", by_hand(rank, 2, port), socket,
                       doctor_in(folder));
  };
  {
    const dist::Descriptor job = dist::listen_on(dist::Endpoint::parse("unix:" + socket));
    const Ended used = shell("exec env " + meet(0));
    CHECK(used.code == 1);
    CHECK(contains(used.out, "is in use: another job's rank 0 listens there"));
    CHECK(contains(used.out, "End that job"));
  }
  std::ofstream(folder / "kill.sh") << meet(0) << " >/dev/null 2>&1 &\n"
                                    << "for i in $(seq 100); do [ -S '" << socket
                                    << "' ] && break; sleep 0.02; done; kill -9 $!\n";
  REQUIRE(shell("sh '" + (folder / "kill.sh") + "'").code == 0);
  REQUIRE(::access(socket.c_str(), F_OK) == 0);
  const Ended stale =
      shell(fmt::format("{} >/dev/null 2>&1 & {}; code=$?; wait; exit $code", meet(1), meet(0)));
  INFO(stale.out, stale.err);
  CHECK(stale.code == 0);
  CHECK(contains(stale.out, "was left by a process that is gone; rank 0 will replace it"));
}

TEST_CASE("doctor: a rank whose messages are delayed has slow links") {
  const TemporaryFolder folder;
  const std::string address =
      fmt::format("export WORLD_SIZE=3 LOCAL_WORLD_SIZE=3 MASTER_ADDR={} MASTER_PORT={};",
                  own_host(), free_port());
  const std::string rank =
      fmt::format("'{}/lockstep_doctor' --device cpu --transport tcp --folder '{}'",
                  LOCKSTEP_BIN_DIR, folder.path().string());
  const Ended ended =
      test::run({"/bin/sh", "-c",
                 fmt::format("{0} RANK=1 LOCAL_RANK=1 {1} >/dev/null 2>&1 & "
                             "LD_PRELOAD='{2}' RANK=2 LOCAL_RANK=2 {1} >/dev/null 2>&1 & "
                             "RANK=0 LOCAL_RANK=0 {1} --json '{3}'; code=$?; wait; exit $code",
                             address, rank, LOCKSTEP_SLOW_LINK, folder / "json")});
  INFO(ended.out, ended.err);
  CHECK(ended.code == 1);
  CHECK(test::count(ended.out, "PROBLEM") == 1);
  for (const auto& finding : nlohmann::json::parse(std::ifstream(folder / "json"))) {
    CHECK(finding.at("good") == (finding.at("check") != "links"));
    if (finding.at("check") != "links") continue;
    const std::string found = finding.at("found");
    CHECK(contains(found, "ranks 0 and 2: "));
    CHECK(contains(found, "ranks 1 and 2: "));
    CHECK_FALSE(contains(found, "ranks 0 and 1: "));
    CHECK(contains(std::string(finding.at("advice")), "slowest link"));
  }
}

// Findings of GPUs, here the simulator's, and what the script and CMake say to a CUDA toolkit that
// will not do.

namespace {

/// Two ranks with two simulated GPUs on a system with this nvidia-smi, unless `variables` say
/// otherwise.
Ended doctor_on_sim(const TemporaryFolder& folder, const std::string& variables,
                    const std::string& options = "",
                    const std::string& nvidia_smi = "echo 'Disabled, Default'") {
  std::ofstream(folder / "nvidia-smi") << "#!/bin/sh\n" << nvidia_smi << "\n";
  std::filesystem::permissions(folder / "nvidia-smi", std::filesystem::perms::owner_all);
  return test::run(
      {"/bin/sh", "-c",
       fmt::format("unset CUDA_DEVICE_MAX_CONNECTIONS CUDA_MODULE_LOADING; "
                   "exec env PATH='{0}':\"$PATH\" CUDA_MPS_PIPE_DIRECTORY= LOCKSTEP_SIM_DEVICES=2 "
                   "{1} '{2}/lockstep_doctor' --device sim --gradients-mb 1 --folder '{0}' {3}",
                   folder.path().string(), variables, LOCKSTEP_BIN_DIR, options)});
}

/// It is the only problem.
void check_problem(const Ended& ended, const std::string& finding, const std::string& advice) {
  CAPTURE(ended.out);
  CAPTURE(ended.err);
  CHECK(ended.code == 1);
  CHECK(test::count(ended.out, "PROBLEM") == 1);
  CHECK(contains(ended.out, "PROBLEM " + finding));
  CHECK(contains(ended.out, advice));
}

}  // namespace

TEST_CASE("doctor: through the front door, simulated GPUs") {
  if (gpu::kind() != Device::Kind::sim) return;
  const TemporaryFolder folder;
  const Ended well = doctor_on_sim(folder, "");
  CAPTURE(well.out);
  CAPTURE(well.err);
  CHECK(well.code == 0);
  CHECK(test::count(well.out, "ok      ") == 22);
  for (const char* found :
       {"ok      GPU driver: the driver", "ok      GPU kernels: simulated GPU is sm_80",
        "ok      GPU peers: all 2 GPUs", "ok      NCCL: ", "compute mode Default",
        "GPU persistence: off", "ok      GPU queues: ", "ok      GPU loading: ",
        "ok      containers: ", "ok      GPU memory: ", "ok      all-reduce on sim: ",
        "ok      gradients on sim: ", "Nothing is wrong."})
    CHECK(contains(well.out, found));
}

TEST_CASE("doctor: through the front door, what is planted about simulated GPUs") {
  if (gpu::kind() != Device::Kind::sim) return;
  const TemporaryFolder folder;
  check_problem(doctor_on_sim(folder, "CUDA_DEVICE_MAX_CONNECTIONS=1"),
                "GPU queues: ", "unset it, or set 8 to 32");
  check_problem(doctor_on_sim(folder, "CUDA_MPS_PIPE_DIRECTORY=/nowhere"),
                "GPU sharing: ", "asks for MPS");
  check_problem(doctor_on_sim(folder, "LOCKSTEP_SIM_MEMORY=2500000"),
                "GPU memory: rank 0: ", "fewer ranks on each GPU");
  // NCCL serves such GPUs, the ring of ours does not.
  const std::string apart = "LOCKSTEP_SIM_PEER_ACCESS=no";
  const Ended nccl = doctor_on_sim(folder, apart);
  CAPTURE(nccl.out);
  CHECK(nccl.code == 0);
  CHECK(contains(nccl.out, "cannot address each other's memory: 0 and 1"));
  check_problem(doctor_on_sim(folder, apart, "--comm ring"),
                "all-reduce on sim: rank 0: nothing reaches the GPUs", "See GPU peers");
}

TEST_CASE("doctor: through the front door, CUDA that does not start, and a driver that hangs" *
          doctest::test_suite("slow")) {
  if (gpu::kind() != Device::Kind::sim) return;
  const TemporaryFolder folder;
  const Ended unstarted = doctor_on_sim(folder, "CUDA_DEVICE_MAX_CONNECTIONS=abc");
  CAPTURE(unstarted.out);
  CHECK(test::count(unstarted.out, "PROBLEM") == 2);
  CHECK(contains(unstarted.out, "PROBLEM GPU queues: CUDA_DEVICE_MAX_CONNECTIONS=abc"));
  CHECK_FALSE(contains(unstarted.out, "no NVIDIA driver"));
  // It takes no notice of SIGTERM, and longer than ranks wait for each other.
  check_problem(doctor_on_sim(folder, "", "--timeout 3", "trap '' TERM; sleep 1000"),
                "GPU driver: nvidia-smi did not answer", "nvidia-smi -pm 1");
}

TEST_CASE("doctor: through the front door, an option that is given twice is one line") {
  const Ended ended = test::run({LOCKSTEP_BIN_DIR "/lockstep_doctor", "--ranks", "2", "--ranks=3"});
  CHECK(ended.code == 2);
  CHECK(test::lines_of(ended.err).size() == 1);
  CHECK(contains(ended.err, "--ranks takes one value, and is given 2 times"));
}

TEST_CASE("doctor: through the front door, a device that this build does not drive is one line") {
  for (const auto kind : {Device::Kind::sim, Device::Kind::cuda}) {
    if (gpu::kind() == kind) continue;
    const std::string name(Device::name_of(kind));
    const Ended ended = test::run({LOCKSTEP_BIN_DIR "/lockstep_doctor", "--device", name});
    CHECK(ended.code == 2);
    CHECK(ended.out == "");
    CHECK(test::lines_of(ended.err).size() == 1);
    CHECK(contains(ended.err, "--device " + name + ": this build drives"));
  }
}

TEST_CASE("lockstep: a CUDA toolkit that is too old, or none, is one line") {
  const TemporaryFolder folder;
  const auto facts = [](const std::string& nvcc) {
    return test::run({"env", "CUDACXX=" + nvcc, LOCKSTEP_SOURCE_DIR "/lockstep", "facts"});
  };
  const std::string nvcc = folder / "nvcc";
  std::ofstream(nvcc) << "#!/bin/sh\necho 'Cuda compilation tools, release 11.8, V11.8.89'\n";
  std::filesystem::permissions(nvcc, std::filesystem::perms::owner_all);
  const std::pair<std::string, std::string> table[] = {
      {nvcc, "found nvcc 11.8, " + nvcc},
      {nvcc + " -ccbin g++", "found nvcc 11.8, " + nvcc},
      {folder / "none",
       "found that CUDACXX names '" + (folder / "none") + "', which is no program"}};
  for (const auto& [named, found] : table) {
    const Ended ended = facts(named);
    CAPTURE(ended.err);
    CHECK(ended.code == 1);
    CHECK(test::lines_of(ended.err).size() == 1);
    CHECK(contains(ended.err, "facts needs the CUDA toolkit 12.5 or newer, for sm_"));
    CHECK(contains(ended.err, found));
    CHECK(contains(ended.err, "let CUDACXX name its nvcc"));
  }

  // CMake says the same, and breaks its lines.
  std::string named = nvcc;
  const auto cmake = [&](const std::string& architectures, bool by_environment = false) {
    const std::string option =
        by_environment ? "-Dunused=" : "-DCMAKE_CUDA_ARCHITECTURES=" + architectures;
    Ended ended =
        test::run({"env", "-C", folder.path().string(), "CUDACXX=" + named,
                   "CUDAARCHS=" + (by_environment ? architectures : ""), "cmake",
                   "-DLOCKSTEP_CUDA=ON", "-DLOCKSTEP_OLDEST_CUDA=12.5", "-DLOCKSTEP_OLDEST_SM=80",
                   option, "-P", LOCKSTEP_SOURCE_DIR "/cmake/gpu.cmake"});
    std::string words;  // as one line
    for (const std::string& line : test::lines_of(ended.err))
      words += line.substr(std::min(line.find_first_not_of(' '), line.size())) + " ";
    ended.err = words;
    return ended;
  };
  const Ended old = cmake("80;90a");
  CAPTURE(old.err);
  CHECK(old.code == 1);
  CHECK(contains(old.err,
                 "LOCKSTEP_CUDA=ON needs the CUDA toolkit 12.5 or newer, for sm_80, "
                 "sm_90a; found nvcc 11.8, "));
  // A newer toolkit than needed, which does not know the GPU, or a GPU that is too old.
  std::ofstream(nvcc) << "#!/bin/sh\ncase $1 in --version) echo 'release 12.6, V12.6.1';;\n"
                         "--list-gpu-arch) printf 'compute_75\\ncompute_80\\n';; esac\n";
  CHECK(contains(cmake("120").err, "needs a CUDA toolkit that knows sm_120; found nvcc 12.6"));
  CHECK(contains(cmake("75").err, "needs GPUs of sm_80 or newer, not sm_75"));
  CHECK(contains(cmake("75", true).err, "needs GPUs of sm_80 or newer, not sm_75"));
  for (const std::string wrong : {"sm_80", "80 90", "foo"})
    CHECK(contains(cmake(wrong).err, "takes 80 or 90a, several with semicolons, not '" + wrong));
  // One that compiles nothing says why, beside what it was to compile with and for.
  std::ofstream(nvcc, std::ios::app)
      << "case \"$*\" in *'-arch=sm_80 -c '*)\n"
         "printf 'a warning\\nfatal error: no such gcc\\n'; exit 1;; esac\n";
  const Ended compiles_nothing = cmake("80");
  CAPTURE(compiles_nothing.err);
  CHECK(
      contains(compiles_nothing.err, "which cannot compile for sm_80 with the C++ compiler g++ "));
  CHECK(contains(compiles_nothing.err, ": fatal error: no such gcc (if it wants another"));
  named = folder / "no nvcc";
  CHECK(contains(cmake("80").err, "CUDACXX names '" + named + "', which is no program"));
  std::filesystem::copy(nvcc, named);
  CHECK(contains(cmake("80").err, "no such gcc"));
}
