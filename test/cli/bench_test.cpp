// The benchmarks: that nothing is timed which computes something else, and that the programs say
// what they found. Never how long anything took.

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/bench/allreduce/rank.h"
#include "lockstep/bench/kernels/peers.h"
#include "lockstep/bench/kernels/verify.h"
#include "support/device.h"
#include "support/program.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using namespace lockstep::test;
namespace fs = std::filesystem;

namespace {

const std::string kernels_program = LOCKSTEP_BIN_DIR "/bench_kernels";
const std::string step_program = LOCKSTEP_BIN_DIR "/bench_step";
const std::string reducer_program = LOCKSTEP_BIN_DIR "/bench_reducer";
const std::string allreduce_program = LOCKSTEP_BIN_DIR "/bench_allreduce";

/// out_i = in_i + 1, of 1000 elements, but for what `spoil` does to it.
bench::Case add_one(const std::function<void(const Tensor& out)>& spoil) {
  const Tensor in = Tensor::empty({1000}), out = Tensor::empty({1000});
  for (std::size_t i = 0; i < 1000; ++i) in.span<float>()[i] = 0.01f * static_cast<float>(i);
  const auto run = [=] {
    for (std::size_t i = 0; i < 1000; ++i) out.span<float>()[i] = in.span<float>()[i] + 1;
    spoil(out);
  };
  const auto expected = [](const std::vector<bench::Values>& inputs, std::int64_t i) {
    return inputs[0][i] + 1;
  };
  return {.run = run, .inputs = {in}, .outputs = {{out, expected, 1, 1e-5}}};
}

void verify(const bench::Case& work) { bench::verify(work, {"a kernel", work.run}); }

/// Rank 1 of 2, with an all-reduce that adds what rank 0 would have, and `error` to element
/// 700,000.
class SecondOfTwo final : public bench::Engine {
 public:
  explicit SecondOfTwo(float error) : error_(error) {}
  int rank() const override { return 1; }
  int size() const override { return 2; }
  void put(std::int64_t begin, std::span<const float> values) override {
    bench::store(memory_, begin, values);
  }
  void get(std::int64_t begin, std::span<float> values) override {
    bench::load(memory_, begin, values);
  }
  void all_reduce(std::int64_t count) override {
    for (std::int64_t i = 0; i < count; ++i)
      memory_[static_cast<std::size_t>(i)] += static_cast<float>(i % 65521 * 8);
    memory_[700'000] += error_;
  }
  void barrier() override {}

 private:
  std::vector<float> memory_ = std::vector<float>(800'000);
  float error_;
};

}  // namespace

TEST_CASE("bench: every row and its peers compute what they should") {
  const bench::Scale scale{.on_gpu = !on_cpu(), .quick = true};
  for (const bench::Row& row : bench::all_rows(scale))
    for (const bench::Size& size : row.sizes) {
      CAPTURE(row.name);
      CAPTURE(size.text());
      bench::Source source(test_device());
      const bench::Case work = row.prepare(size, source);
      CHECK_NOTHROW(bench::verify(work, {row.name, work.run}));
      for (const bench::Contender& peer : work.peers) CHECK_NOTHROW(bench::verify(work, peer));
      for (const bench::Contender& peer : bench::peers_of(row.name, work))
        CHECK_NOTHROW(bench::verify(work, peer));
    }
}

TEST_CASE("bench: verification finds one wrong element, NaN, and what was not written") {
  CHECK_NOTHROW(verify(add_one([](const Tensor&) {})));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK_THROWS_WITH_AS(verify(add_one([](const Tensor& out) { out.span<float>()[637] = 7.5f; })),
                       doctest::Contains("[verify] a kernel: output 0 has 7.5 at element 637"),
                       bench::VerificationError);
  CHECK_THROWS_AS(verify(add_one([=](const Tensor& out) { out.span<float>()[999] = nan; })),
                  bench::VerificationError);
  bench::Case idle = add_one([](const Tensor&) {});
  idle.run();  // the right numbers lie there already
  CHECK_THROWS_AS(bench::verify(idle, {"nobody", [] {}}), bench::VerificationError);
}

TEST_CASE("bench: of outputs that are dear to check, every part has an element that is checked") {
  bench::Case work = add_one([](const Tensor& out) { out.slice(500, 600).fill(-1); });
  work.outputs[0].cost = (1 << 24) / 10;  // ten elements
  CHECK_THROWS_AS(verify(work), bench::VerificationError);
}

TEST_CASE("bench kernels: the table and its JSON") {
  const fs::path file = fs::temp_directory_path() / "lockstep-bench-kernels.json";
  fs::remove(file);
  const Ended ended = run({kernels_program, "--device", "cpu", "--quick", "--only", "sum_rows,adam",
                           "--json", file.string()});
  CAPTURE(ended.err);
  REQUIRE(ended.code == 0);
  CHECK(contains(ended.out, "| sum_rows "));
  const auto json = nlohmann::json::parse(std::ifstream(file));
  fs::remove(file);
  CHECK(json["device"] == "cpu, one core");
  CHECK(json["copy_gb_per_s"] > 0);
  REQUIRE(json["rows"].size() == 2);
  const auto& row = json["rows"][0];
  CHECK(row["kernel"] == "sum_rows");
  CHECK(row["size"] == "37x101");
  CHECK(row["bytes"] == 4 * 37 * 101);
  CHECK(row["rounds_us"].size() == 7);
  CHECK(row["min_us"] <= row["median_us"]);
  CHECK(row["median_us"] <= row["max_us"]);
  CHECK(row["gb_per_s"] > 0);
  CHECK(row["share_of_ceiling"] > 0);
  CHECK(row["peers"][0]["name"] == "Eigen");
  CHECK(row["peers"][0]["ratio"] > 0);
}

TEST_CASE("bench functions: the worst comes first, and what differs is an error") {
  const TemporaryFolder folder;
  const fs::path peer = folder.path() / "python";  // that has torch, as far as can be seen
  std::ofstream(peer) << R"(#!/bin/sh
[ "$1" = -c ] && exit 0
echo "ready PyTorch 0"
while read -r word rest; do
  case "$word $rest" in
    case*isinf*) echo "case element 7 is 1 instead of 2" ;;
    case*leaky*) echo "case equal" && us=1000000 ;;
    case*) echo "case equal" && us=0.001 ;;
    *) echo "us $us" ;;
  esac
done
)";
  fs::permissions(peer, fs::perms::owner_all);
  const fs::path file = folder.path() / "functions.json";
  const std::string program = LOCKSTEP_BIN_DIR "/bench_functions";
  const Ended ended = run({program, "--quick", "--only", "relu", "--rows", "5", "--columns", "7",
                           "--python", peer.string(), "--json", file.string()});
  CHECK(ended.code == 1);
  CHECK(contains(ended.err, "(1 / x.relu()).isinf(): element 7 is 1 instead of 2"));
  CHECK(contains(ended.err, "1 of 5 expressions differ"));
  CHECK(contains(ended.out, "cpu, one thread | PyTorch 0 | x (5, 7) f32"));
  const auto json = nlohmann::json::parse(std::ifstream(file));
  const auto& functions = json["functions"];
  REQUIRE(functions.size() == 4);  // two more are F.linear(...).relu()
  for (std::size_t i = 0; i + 1 < functions.size(); ++i)
    CHECK(functions[i]["ratio"] >= functions[i + 1]["ratio"]);
  CHECK(functions.back()["function"] == "F.leaky_relu(x, 0.1)");
  const Ended none = run({program, "--only", "no such function"});
  CHECK(none.code == 2);
  CHECK(contains(none.err, "--only no such function: no expression contains that"));
}

TEST_CASE("bench allreduce: one wrong sum is found") {
  const fs::path folder = fs::temp_directory_path() / "lockstep-bench-allreduce";
  fs::create_directories(folder);
  std::ofstream(folder / "1") << "verify 800000\n";  // what rank 1 is told to do
  SecondOfTwo right(0), wrong(1);
  CHECK_NOTHROW(bench::serve(right, "a contender", folder));
  CHECK_THROWS_WITH_AS(bench::serve(wrong, "a contender", folder),
                       "rank 1: element 700000 of 800000 is 716642, not 716641", Error);
  fs::remove_all(folder);
}

TEST_CASE("bench allreduce: every communicator and transport, and the JSON" *
          doctest::test_suite("slow")) {
  const fs::path file = fs::temp_directory_path() / "lockstep-bench-allreduce.json";
  fs::remove(file);
  const Ended ended =
      run({allreduce_program, "--ranks", "3", "--min", "1020", "--max", "4K", "--rounds", "3",
           "--round", "0.0001", "--comm", "auto,ring,nccl", "--peer", "none", "--json", file});
  CAPTURE(ended.err);
  REQUIRE(ended.code == 0);
  CHECK(contains(ended.out, "algbw = bytes / time"));
  CHECK(contains(ended.out, "4080 B  threads ring"));
  const auto json = nlohmann::json::parse(std::ifstream(file));
  fs::remove(file);
  std::multiset<std::string> who;
  for (const auto& row : json) {
    if (row["bytes"] == 1020)
      who.insert(fmt::format("{} {}", std::string(row["transport"]), std::string(row["comm"])));
    CHECK(row["ranks"] == 3);
    const double us = row["median_us"];
    CHECK(us > 0);
    const double algbw = double(row["bytes"]) / us / 1e3;  // GB/s
    CHECK(double(row["busbw_gbs"]) == doctest::Approx(algbw * 4 / 3));
  }
  CHECK(json.size() == 3 * 10);  // 1020, 2040 and 4080 bytes
  CHECK(who == std::multiset<std::string>{"shm auto", "shm ring", "tcp auto", "tcp ring",
                                          "threads auto", "threads ring", "shm bound", "tcp bound",
                                          "tcp tags", "tcp poly1305"});
  CHECK(contains(ended.err, "without nccl nccl: "));
}

TEST_CASE("bench reducer: a row for each cap, with the plan's buckets, and the JSON") {
  const fs::path file = fs::temp_directory_path() / "lockstep-bench-reducer.json";
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    fs::remove(file);
    const Ended ended = run({reducer_program, "--layers", "6,5,3", "--batch", "4", "--caps", "1,25",
                             "--ranks", std::to_string(ranks), "--parameters", "50", "--rounds",
                             "3", "--round", "0.001", "--json", file});
    CAPTURE(ended.err);
    REQUIRE(ended.code == 0);
    CHECK(contains(ended.out, "A reducer adds "));
    const auto json = nlohmann::json::parse(std::ifstream(file));
    fs::remove(file);
    CHECK(json["ranks"] == ranks);
    std::vector<std::pair<std::string, int>> found;
    for (const auto& row : json["rows"]) {
      found.emplace_back(row["name"], row["buckets"]);
      CHECK(row["p10_us"] <= row["median_us"]);
      CHECK(row["median_us"] <= row["p90_us"]);
      CHECK(row["ideal_us"] >= 0);
    }
    // Two layers have four parameters, and these have 53 elements.
    CHECK(found == std::vector<std::pair<std::string, int>>{
                       {"per parameter", 4}, {"1 MiB", 1}, {"25 MiB, default", 1}, {"alone", 0}});
  }
}

TEST_CASE("bench: bad usage has code 2") {
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{kernels_program, "--device", "sim"},
                                             {allreduce_program, "--ranks", "9"},
                                             {allreduce_program, "--min", "6"},
                                             {allreduce_program, "--comm", "nosuch"},
                                             {reducer_program, "--caps", "1,0"},
                                             {reducer_program, "--rounds", "2"},
                                             {kernels_program, "--only", "nosuch"},
                                             {step_program, "--device", "cpu", "--graph"}}) {
    const Ended ended = run(command);
    CAPTURE(ended.err);
    CHECK(ended.code == 2);
    CHECK(lines_of(ended.err).size() == 1);
  }
}

TEST_CASE("bench step: a recorded step trains") {
  if (on_cpu()) return;
  const fs::path file = fs::temp_directory_path() / "lockstep-bench-step.json";
  const std::string device(Device::name_of(test_device().kind));
  const Ended ended =
      run({step_program, "--device", device, "--graph", "--layers", "6,5,3", "--batch", "4",
           "--rounds", "5", "--round", "0.001", "--json", file.string()});
  CAPTURE(ended.err);
  REQUIRE(ended.code == 0);
  const auto json = nlohmann::json::parse(std::ifstream(file));
  fs::remove(file);
  CHECK(json["graph"] == true);
  CHECK(json["ranks"] == 2);
}
