// A part whose tensors come, go and change from save to save: each file has those of its own save,
// whether it is written at once or beside training. And of several parts that fail, the first is
// named.

#include <doctest/doctest.h>

#include "lockstep/lockstep.h"
#include "support/temporary_folder.h"

using namespace lockstep;

namespace {

struct Changing {
  nn::StateDict now;
  std::string failure;
  nn::StateDict state_dict() const {
    check<StateError>(failure.empty(), "{}", failure);
    return now;
  }
  void load_state_dict(const nn::StateDict& state) {
    check<StateError>(failure.empty(), "{}", failure);
    now = state;
  }
};

std::map<std::string, std::string> hashes(const nn::StateDict& state) {
  std::map<std::string, std::string> all;
  for (const auto& [name, tensor] : state) all.emplace("part/" + name, nn::sha256_of(tensor));
  return all;
}

}  // namespace

TEST_SUITE_BEGIN("not-cpu not-late");  // the same files, whatever computes

TEST_CASE("checkpoint snapshot: a file has the tensors of its save, and none of an earlier one") {
  const test::TemporaryFolder folder;
  const std::vector<nn::StateDict> states{
      {{"a", Tensor::full({2, 3}, 1)}, {"b", Tensor::full({4}, 2)}},
      {{"a", Tensor::full({2, 3}, 3)}},
      {{"a", Tensor::full({3, 2}, 4)}, {"c", Tensor::full({1}, 5)}},
      {{"a", Tensor::full({3, 2}, 4, DType::i32)}, {"c", Tensor::full({1}, 5, DType::f64)}},
      {{"c", Tensor::full({1}, 5, DType::i64)}, {"b", Tensor::full({5}, 6)}},
      {{"c", Tensor::full({1}, 7, DType::i64)}},
      {{"a", Tensor::full({2, 3}, 1)}, {"b", Tensor::full({4}, 2)}}};
  for (const bool async : {false, true}) {
    Changing part;
    nn::Checkpoint checkpoint;
    checkpoint.add("part", part);
    for (const nn::StateDict& state : states) {
      part.now = state;
      checkpoint.save(folder / "run", {.async = async});
      checkpoint.wait();
      auto saved = nn::Checkpoint::manifest(folder / "run").sha256;
      std::erase_if(saved, [](const auto& entry) { return !entry.first.starts_with("part/"); });
      CHECK(saved == hashes(state));
      part.now.clear();
      part.now.emplace("other", Tensor::zeros({1}));
      checkpoint.load(folder / "run");
      CHECK(hashes(part.now) == hashes(state));
    }
  }
}

TEST_CASE("checkpoint snapshot: of several parts that fail the first is named") {
  const test::TemporaryFolder folder;
  Changing first, second, third;
  nn::Checkpoint checkpoint;
  checkpoint.add("first", first);
  checkpoint.add("second", second);
  checkpoint.add("third", third);
  for (Changing* part : {&first, &second, &third}) part->now = {{"x", Tensor::zeros({1})}};
  checkpoint.save(folder / "run");
  const auto fails = [&](std::vector<Changing*> parts, const char* text) {
    for (Changing* part : parts)
      part->failure = part == &first ? "one" : part == &second ? "two" : "three";
    CHECK_THROWS_WITH_AS(checkpoint.save(folder / "run"), text, StateError);
    CHECK_THROWS_WITH_AS(checkpoint.load(folder / "run"), text, StateError);
    for (Changing* part : parts) part->failure.clear();
    checkpoint.load(folder / "run");
  };
  fails({&first, &second, &third}, "one");
  fails({&second, &third}, "two");
  fails({&first, &third}, "one");
  fails({&third}, "three");
}

TEST_SUITE_END();
