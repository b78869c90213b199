#include "lockstep/nn/checkpoint/random_state.h"

#include <algorithm>

#include "lockstep/core/generator.h"
#include "lockstep/dist/collectives/object_collectives.h"
#include "lockstep/nn/checkpoint/manifest.h"

namespace lockstep::nn {
namespace {

bool all_equal(const std::vector<std::string>& texts) {
  return std::ranges::all_of(texts, [&](const std::string& text) { return text == texts[0]; });
}

}  // namespace

StateDict random_state() {
  const PhiloxState philox = default_philox().state();
  return {{"mt19937", default_generator().state()},
          {"philox", Tensor::of<std::int64_t>({2}, {static_cast<std::int64_t>(philox.seed),
                                                    static_cast<std::int64_t>(philox.offset)})}};
}

void load_random_state(const StateDict& state) {
  const StateDict own = random_state();
  load_tensors("the random generators", own, state);
  default_generator().set_state(own.at("mt19937"));
  const auto philox = own.at("philox").to_vector<std::int64_t>();
  default_philox().set_state(
      {static_cast<std::uint64_t>(philox[0]), static_cast<std::uint64_t>(philox[1])});
}

std::vector<std::string> load_random_state_of_other_world(const std::vector<StateDict>& saved,
                                                          dist::Communicator* communicator) {
  StateDict state = random_state();
  std::vector<std::string> stay;
  for (auto& [name, own] : state) {
    std::vector<std::string> there, here{sha256_of(own)};
    for (const StateDict& rank : saved) {
      const auto found = rank.find(name);
      there.push_back(found == rank.end() ? "" : sha256_of(found->second));
    }
    if (communicator) here = dist::gather_text(*communicator, here[0], "random");
    if (all_equal(there) && all_equal(here) && !there[0].empty())
      own = saved[0].at(name);
    else
      stay.push_back(name);
  }
  load_random_state(state);
  return stay;
}

}  // namespace lockstep::nn
