// Counted in the simulator, and counted by an H100: the same figures.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "lockstep/core/error.h"
#include "lockstep/tools/counts/counted.h"

namespace lockstep::counts {
namespace {

using simt::counters::Class;

/// Requests, and the sectors or wavefronts that they cost.
struct Cost {
  std::uint64_t requests = 0, parts = 0;
  double each() const {
    return requests == 0 ? 0 : static_cast<double>(parts) / static_cast<double>(requests);
  }
};

/// A line of the reference file: a launch that Nsight Compute has counted.
struct Measured {
  std::string operation, size, kernel;
  Cost load, store, shared_load, shared_store;
};

std::vector<Measured> read_reference() {
  std::ifstream file(LOCKSTEP_TEST_DATA "/counters_h100.txt");
  std::vector<Measured> all;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.starts_with('#')) continue;
    std::istringstream words(line);
    Measured& one = all.emplace_back();
    words >> one.operation >> one.size >> one.kernel;
    for (Cost* cost : {&one.load, &one.store, &one.shared_load, &one.shared_store})
      words >> cost->requests >> cost->parts;
    REQUIRE_MESSAGE(words, line);
  }
  return all;
}

const Counted* find(const std::vector<Counted>& all, const Measured& wanted) {
  for (const Counted& one : all)
    if (one.problem.name == wanted.operation && one.problem.size == wanted.size) return &one;
  return nullptr;
}

Cost global(const Launch& launch, Class what) {
  return {launch.of(what).requests, launch.of(what).sectors};
}

Cost shared(const Launch& launch, Class what) {
  return {launch.of(what).requests, launch.of(what).wavefronts};
}

/// g++ takes structures apart that nvcc reads and writes as a whole.
bool taken_apart_here(const Measured& on_gpu) { return on_gpu.kernel == "optimizer_step_kernel"; }

void check_global(const Launch& here, const Measured& on_gpu) {
  const Cost load = global(here, Class::global_load), store = global(here, Class::global_store);
  CHECK(load.each() == on_gpu.load.each());
  CHECK(store.each() == on_gpu.store.each());
  if (on_gpu.size != "1024x1024" && on_gpu.size != "128x10") return;
  CHECK(load.requests == on_gpu.load.requests);
  CHECK(store.requests == on_gpu.store.requests);
}

/// Wavefronts alone: a GPU also counts instructions of which no thread takes part.
void check_shared(const Launch& here, const Measured& on_gpu) {
  if (taken_apart_here(on_gpu) || on_gpu.size == "256x256") return;
  const auto near = [](const Cost& counted, const Cost& measured) {
    CHECK(static_cast<double>(counted.parts) ==
          doctest::Approx(static_cast<double>(measured.parts)).epsilon(0.35));
  };
  near(shared(here, Class::shared_load), on_gpu.shared_load);
  near(shared(here, Class::shared_store), on_gpu.shared_store);
}

}  // namespace

TEST_CASE("counts: what the simulator counts is what an H100 counts") {
  std::vector<Counted> all = count(measured_problems());
  for (Counted& one : count(chosen({"transpose_f32", "adam_step"}))) all.push_back(std::move(one));
  for (const Measured& on_gpu : read_reference()) {
    CAPTURE(on_gpu.operation);
    CAPTURE(on_gpu.size);
    CAPTURE(on_gpu.kernel);
    const Counted* const counted = find(all, on_gpu);
    REQUIRE(counted);
    const auto launch = std::ranges::find(counted->launches, on_gpu.kernel,
                                          [](const Launch& one) { return short_name(one.kernel); });
    REQUIRE(launch != counted->launches.end());
    check_global(*launch, on_gpu);
    check_shared(*launch, on_gpu);
  }
}

}  // namespace lockstep::counts
