// Many parameters: what is done for each may not look at all others. With such a loop each of these
// would take minutes, and more than the suite's timeout.

#include <doctest/doctest.h>

#include "lockstep/lockstep.h"
#include "support/temporary_folder.h"

using namespace lockstep;

namespace {

std::vector<Parameter> many(int count) {
  std::vector<Parameter> all;
  for (int i = 0; i < count; ++i) all.emplace_back(Tensor::full({1}, i), fmt::format("p{}", i));
  return all;
}

}  // namespace

TEST_SUITE_BEGIN("not-address");  // a matter of time

TEST_CASE("many parameters: an optimizer's state, there and back") {
  constexpr int count = 150'000;
  const std::vector<Parameter> all = many(count);
  const std::vector<Parameter> front(all.begin(), all.begin() + 7),
      rest(all.begin() + 7, all.end());
  optim::SGD optimizer({{front, {.lr = 0.5}}, {rest, {}}}, {.lr = 1, .momentum = 0.5});
  for (const Parameter& parameter : all) {
    parameter.gradient_slot().copy_from(parameter.value());
    parameter.set_gradient_state(GradientState::local);
  }
  optimizer.step();
  double sum = 0;
  for (const Parameter& parameter : all)
    for (const auto& [name, value] : optimizer.state_of(parameter)) sum += value.item();
  CHECK(sum == 0.5 * count * (count - 1.0));  // each has its own momentum
  const nn::StateDict state = optimizer.state_dict();
  CHECK(state.at("p149999.momentum").item() == 149'999);
  CHECK(state.at("p6.group").item() == 0);
  CHECK(state.at("p7.group").item() == 1);
}

TEST_CASE("many parameters: a file of tensors, there and back") {
  constexpr int count = 100'000;
  nn::StateDict state;
  for (int i = 0; i < count; ++i)
    state[fmt::format("a long name for tensor {}", i)] = Tensor::full({1}, i);
  const nn::SafetensorsHeader header = nn::plan_safetensors(state);
  const nn::SafetensorsHeader again = nn::header_of_bytes(nn::to_bytes(header));
  REQUIRE(again.entries.size() == count);
  CHECK(again.entries.back().name == header.entries.back().name);
  CHECK(again.entries.back().end == 4 * count);
}

TEST_SUITE_END();
