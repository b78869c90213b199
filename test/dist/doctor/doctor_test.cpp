// The doctor finds what was planted, names it, and says what to do.

#include "lockstep/dist/doctor/doctor.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include "dist/doctor/findings.h"
#include "lockstep/dist/rendezvous/endpoint.h"
#include "lockstep/nn/layers.h"
#include "support/device.h"
#include "support/temporary_folder.h"
#include "support/text.h"
#include "support/worlds.h"

using namespace lockstep;
using lockstep::doctor::Finding;
using lockstep::test::check_bad;
using lockstep::test::check_good;
using lockstep::test::contains;
using lockstep::test::from;
using lockstep::test::TemporaryFolder;

TEST_CASE("doctor: variables that contradict each other") {
  check_good(doctor::check_environment(from({})));
  const std::map<std::string, std::string> right{{"RANK", "1"},
                                                 {"WORLD_SIZE", "2"},
                                                 {"LOCAL_RANK", "1"},
                                                 {"LOCAL_WORLD_SIZE", "2"},
                                                 {"MASTER_PORT", "29500"}};
  check_good(doctor::check_environment(from(right)));
  for (const auto& [name, value] : {std::pair("WORLD_SIZE", "1"), std::pair("WORLD_SIZE", "two"),
                                    std::pair("RANK", "2"), std::pair("LOCAL_WORLD_SIZE", "3")}) {
    auto wrong = right;
    wrong[name] = value;
    check_bad(doctor::check_environment(from(wrong)), value, "WORLD_SIZE");
  }
  auto missing = right;
  missing.erase("WORLD_SIZE");
  check_bad(doctor::check_environment(from(missing)), "WORLD_SIZE", "lockstep-run");
}

TEST_CASE("doctor: memory that is too small") {
  check_good(doctor::check_shared_memory(2, 1 << 20));
  check_good(doctor::check_shared_memory(2, 1 << 20, std::nullopt));
  // Three ranks of 1 MiB, and nine streams of 64 KiB.
  constexpr std::uint64_t needed = (3U << 20U) + (9U << 16U);
  check_good(doctor::check_shared_memory(3, 1U << 20U, needed));
  check_bad(doctor::check_shared_memory(3, 1U << 20U, needed - 1), "3 ranks", "Fewer ranks");
  check_bad(doctor::check_shared_memory(3, std::uint64_t{1} << 50), "3 ranks", "--memory");
}

TEST_CASE("doctor: cores, and who else uses them") {
  check_good(doctor::check_cores(2, 4, 0.5));
  CHECK(doctor::check_cores(2, 4, 0.5).found == "4 for 2 ranks");
  CHECK(contains(doctor::check_cores(5, 4, 0.5).found, "wait for each other"));
  CHECK(contains(doctor::check_cores(5, 4, 0.5).found, "start at most 4"));
  CHECK(contains(doctor::check_cores(1, 4, 13).found, "13 processes"));
  check_good(doctor::check_cores(5, 4, 13));
  check_good(doctor::check_cores(1));
}

TEST_CASE("doctor: sums and means that are wrong") {
  const auto right = [](std::int64_t count, int n) {
    std::vector<float> sums;
    for (std::int64_t i = 0; i < count; ++i) {
      float sum = 0;
      for (int r = 0; r < n; ++r) sum += static_cast<float>(i % 1000 + 1000 * r);
      sums.push_back(sum);
    }
    return sums;
  };
  for (const int n : {1, 2, 3, 7}) CHECK(doctor::wrong_sum(right(2500, n), n) == "");
  auto sums = right(2500, 3);
  sums[2499] += 1;
  CHECK(doctor::wrong_sum(sums, 3) == "element 2499 of 2500 is 4498, not 4497");
  sums[0] = std::nanf("");
  CHECK(contains(doctor::wrong_sum(sums, 3), "element 0 of 2500 is nan, not 3000"));
  CHECK(doctor::wrong_mean(std::vector{2.0f}, false, 1) == "");
  CHECK(doctor::wrong_mean(std::vector{10 / 3.0f, 10 / 3.0f}, false, 2) == "");
  CHECK(contains(doctor::wrong_mean(std::vector{10 / 3.0f, 3.0f}, false, 2), "gradient is 3, not"));
  CHECK(contains(doctor::wrong_mean(std::vector{std::nanf("")}, false, 2), "is nan"));
  CHECK(contains(doctor::wrong_mean(std::vector{2.0f}, true, 1), "no rank used"));
}

TEST_CASE("doctor: what each error of joining asks for") {
  const std::pair<const char*, const char*> table[] = {
      {"[rendezvous] cannot listen on no.host:1: Name or service not known", "getent hosts"},
      {"rank 1 did not find rank 0 at h:1 within 3 s: Temporary failure in name resolution",
       "as an address"},
      {"[rendezvous] cannot listen on 1.2.3.4:5: Cannot assign requested address",
       "no address of this machine"},
      {"[rendezvous] cannot listen on 127.0.0.1:5: Address already in use", "another MASTER_PORT"},
      {"[rendezvous] cannot listen on h:80: Permission denied", "where this user may listen"},
      {"[rendezvous] cannot listen on unix:/none/x: No such file or directory", "may listen"},
      {"[rendezvous] cannot listen on h:1: No address associated with hostname", "as an address"},
      {"[rendezvous] another rank 0 of this job is listening on unix:/x", "RANK=0"},
      {"[rendezvous] rank 1 has joined twice", "give each its own"},
      {"[rendezvous] after 3 s at h:1 rank 2 is missing of a world of 3",
       "is WORLD_SIZE the number of processes"},
      {"rank 1 did not find rank 0 at h:1 within 3 s: Connection refused", "has not come"},
      {"rank 1: what answers at h:1 does not belong to this job", "another secret"},
      {"rank 1 is of a world of 2, rank 0 of 3", "must be the same"},
      {"[interface] rank 0 would be reached at 127.0.0.1, a loopback address, but rank 1 at h is "
       "on another machine",
       "LOCKSTEP_INTERFACE"},
      {"rank 1: what listens at h:1 speaks protocol version 2, not version 3", "same one"},
      {"[rendezvous] unix:/x belongs to another user", "another place"},
      {"[rendezvous] unix:/x is in the way: not a socket of this user", "another place"},
      {"[rendezvous] /x must be a folder of this user that is closed to others (mode 0700)",
       "another place"},
      {"[shared memory] rank 0: 9.0 MiB are needed, 2.0 MiB are available", "Memory is short"},
      {"[shared memory] rank 0: 9.0 MiB of shared memory: Cannot allocate memory",
       "Memory is short"},
      {"something else", "docs/failures.md"}};
  for (const auto& [message, advice] : table) {
    const Finding finding = doctor::explain_join(CommError(message));
    check_bad(finding, message, advice);
    CHECK(finding.check == "joining");
  }
  check_bad(doctor::explain_join(UsageError("[world] comm nccl is for GPUs")), "nccl",
            "in this rank's options");
  // By its type, where no word says more.
  check_bad(doctor::explain_join(PeerError("rank 1 is gone in 'nodes'")), "gone", "Another rank");
  check_bad(doctor::explain_join(PeerError("after 3 s rank 2 is missing")), "missing",
            "has not come");
  check_bad(doctor::explain_loss(CommError("rank 1 is gone")), "rank 1 is gone", "Has one ended");
}

TEST_CASE("doctor: a folder that cannot be written, or is full") {
  const TemporaryFolder folder;
  check_good(doctor::check_folder(folder.path(), 1000));
  CHECK(folder.empty());
  check_bad(doctor::check_folder(folder / "none", 1), "none", "--folder");
  check_bad(doctor::check_folder("/proc", 1), "/proc", "--folder");
  std::ofstream(folder / "file") << "here";
  check_bad(doctor::check_folder(folder / "file", 1), "file", "--folder");
  check_bad(doctor::check_folder(folder.path(), std::uint64_t{1} << 60), "free", "checkpoint");
}

TEST_CASE("doctor: a port that is taken, a socket that was left") {
  const dist::Descriptor taken = dist::listen_on(dist::Endpoint::parse("127.0.0.1:0"));
  const auto port = dist::local_port(taken.get());
  check_bad(doctor::check_meeting_place(fmt::format("127.0.0.1:{}", port)), std::to_string(port),
            "MASTER_PORT");
  check_good(doctor::check_meeting_place("127.0.0.1:0"));
  // A rank 0 that joins there: the process may be another rank 0, or a stranger.
  try {
    (void)dist::listen_on(dist::Endpoint::parse(fmt::format("127.0.0.1:{}", port)));
    FAIL("two listen at one port");
  } catch (const Error& error) {
    check_bad(doctor::explain_join(error), "Address already in use", "choose another MASTER_PORT");
  }

  // The advice is that of the error, not of a taken port.
  const Finding nowhere = doctor::check_meeting_place("no.such.host.invalid:1");
  check_bad(nowhere, "no.such.host.invalid", "MASTER_ADDR");
  CHECK_FALSE(contains(nowhere.advice, "MASTER_PORT"));

  const TemporaryFolder folder;
  const std::string path = folder / "socket", place = "unix:" + path;
  check_good(doctor::check_meeting_place(place));
  {
    const dist::Descriptor listener = dist::listen_on(dist::Endpoint::parse(place));
    check_bad(doctor::check_meeting_place(place), "is in use", "End that job");
  }
  if (!std::filesystem::exists(path)) {  // left by a process that was killed
    const dist::Descriptor socket(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, path.size());
    REQUIRE(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  }
  const Finding left = doctor::check_meeting_place(place);
  check_good(left);
  CHECK(contains(left.found, "was left by a process that is gone"));
  std::filesystem::remove(path);
  std::ofstream(path) << "here";
  check_bad(doctor::check_meeting_place(place), "is no socket", "rm '");
}

TEST_CASE("doctor: another model on a rank") {
  run_threads(3, {}, [](World& world) {
    nn::Linear layer(4, 5), other(4, world.rank() == 1 ? 6 : 5);
    const Finding alike = doctor::check_same_model(world, layer.parameters());
    const Finding different = doctor::check_same_model(world, other.parameters());
    check<Error>(alike.good, "{}", doctor::to_text(alike));
    check<Error>(!different.good && contains(different.found, "(6, 4)") &&
                     contains(different.found, "rank 1 is in the minority") &&
                     contains(different.advice, "same options"),
                 "{}", doctor::to_text(different));
  });
}

TEST_CASE("doctor: a parameter on another device") {
  if (test::test_device() == Device{}) return;  // there is no other one
  run_threads(2, {}, [](World& world) {
    const Device device = test::test_device();
    const Parameter moved(Tensor::zeros({2}).to(device), "moved"),
        left(Tensor::zeros({2}), "left behind");
    const std::vector<Buffer> buffers;
    const Finding good = doctor::check_placement(world, {moved}, buffers, {});
    check<Error>(good.good, "{}", doctor::to_text(good));
    const Finding one = doctor::check_placement(
        world, world.rank() == 1 ? std::vector{moved, left} : std::vector{moved}, buffers, {});
    check<Error>(!one.good && contains(one.found, "rank 1: left behind is on cpu") &&
                     contains(one.advice, "model.to(device)"),
                 "{}", doctor::to_text(one));
    const Finding all =
        doctor::check_placement(world, {world.rank() == 1 ? left : moved}, buffers, {});
    check<Error>(!all.good && contains(all.found, "rank 1: everything is on cpu"), "{}",
                 doctor::to_text(all));
  });
}

TEST_CASE("doctor: a slow link") {
  using doctor::Link;
  check_good(doctor::judge_links({}));
  check_good(doctor::judge_links({{0, 1, 10, 1000}}));
  check_good(doctor::judge_links({{0, 1, 10, 1000}, {0, 2, 900, 800}, {1, 2, 30, 400}}));
  check_bad(doctor::judge_links({{0, 1, 10, 1000}, {0, 2, 5000, 1000}, {1, 2, 12, 1000}}),
            "ranks 0 and 2: 5000.0 us", "slowest link");
  check_bad(doctor::judge_links({{0, 1, 10, 1000}, {0, 2, 10, 1000}, {1, 2, 12, 100}}),
            "ranks 1 and 2: 12.0 us, 100 MB/s", "slowest link");
  CHECK(contains(doctor::judge_links({{0, 1, 10, 1000}}).found, "no other to compare it with"));
  // Ten: one is far better than the others, which does not make them bad; one is slow.
  std::vector<Link> ten;
  for (int k = 0; k < 10; ++k) ten.push_back({0, k + 1, k == 0 ? 1.0 : 2000.0, k == 0 ? 1e5 : 1e3});
  check_good(doctor::judge_links(ten));
  ten[7].latency_us = 12000;
  check_bad(doctor::judge_links(ten), "ranks 0 and 8: 12000.0 us", "slowest link");
  // One is far better, three are good, and six, the median among them, are slow.
  for (std::size_t k = 4; k < 10; ++k) ten[k].latency_us = 12000;
  const Finding six = doctor::judge_links(ten);
  check_bad(six, "ranks 0 and 10: 12000.0 us", "slowest link");
  CHECK_FALSE(contains(six.found, "ranks 0 and 4:"));
  // A bad rank: two of three pairs.
  const Finding bad = doctor::judge_links({{0, 1, 10, 1000}, {0, 2, 9e3, 9}, {1, 2, 9e3, 9}});
  check_bad(bad, "ranks 0 and 2", "slowest link");
  check_bad(bad, "ranks 1 and 2", "slowest link");
}

TEST_CASE("doctor: worlds in which all is well") {
  for (const int ranks : {1, 3})
    run_threads(ranks, {}, [&](World& world) {
      const std::vector<Finding> findings = doctor::check_world(world);
      check<Error>(findings.size() == 4, "{} findings", findings.size());
      // Links are measured: a busy machine may make one slow.
      for (const Finding& finding : findings)
        check<Error>(finding.good || finding.check == "links", "{}", doctor::to_text(finding));
      const auto links = doctor::measure_links(world);
      check<Error>(links.size() == static_cast<std::size_t>(ranks * (ranks - 1) / 2), "{} links",
                   links.size());
    });
}
