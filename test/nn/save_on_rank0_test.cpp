// A checkpoint that is known to be bad does not replace a good one.

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>

#include "lockstep/lockstep.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using lockstep::test::TemporaryFolder;

namespace {

std::string saved_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Two steps on data of each rank's own; `spoil(rank, model)`; then all save. What each rank threw.
template <class Spoil>
std::vector<std::string> save_after(int size, const std::string& path, Spoil spoil) {
  std::vector<std::string> messages(static_cast<std::size_t>(size));
  run_threads(size, {}, [&](World& world) {
    manual_seed(7);
    nn::Sequential model{nn::Linear(3, 5), nn::ReLU(), nn::Linear(5, 2)};
    optim::SGD optimizer(model.parameters(), {.lr = 0.1, .momentum = 0.9});
    dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
    for (int step = 0; step < 2; ++step) {
      Tape tape;
      const auto value = static_cast<float>(world.rank() + 10 * step);
      tape.backward(sum(model(Tensor::full({4, 3}, value))), Weight{4});
      optimizer.step();
      optimizer.zero_grad();
    }
    spoil(world.rank(), model);
    try {
      ddp.save_on_rank0([&] { nn::save_safetensors(path, model.state_dict()); });
    } catch (const Error& error) {
      messages[static_cast<std::size_t>(world.rank())] = error.what();
    }
  });
  return messages;
}

}  // namespace

TEST_CASE("save_on_rank0: one bit of one parameter of one rank, and the old file stays") {
  const TemporaryFolder folder;
  const std::string path = folder / "model";
  for (const int size : {2, 3, 4, 7})
    for (const int victim : {0, size - 1}) {
      CAPTURE(size);
      CAPTURE(victim);
      std::ofstream(path) << "a good one";
      const auto flip = [&](int rank, nn::Sequential& model) {
        if (rank != victim) return;
        const Tensor value = model.parameters()[2].value();
        std::uint32_t bits = 0;
        std::memcpy(&bits, value.raw() + 4, 4);
        bits ^= 1;
        std::memcpy(value.raw() + 4, &bits, 4);
      };
      for (const std::string& message : save_after(size, path, flip))
        CHECK_MESSAGE(message.find("the replicas differ") != message.npos, message);
      CHECK(saved_text(path) == "a good one");
    }
}

TEST_CASE(
    "save_on_rank0: equal replicas replace the old file; an error of the save is everybody's") {
  const TemporaryFolder folder;
  const std::string path = folder / "model";
  const auto nothing = [](int, nn::Sequential&) {};
  for (const int size : {1, 2, 3, 4, 7}) {
    CAPTURE(size);
    std::ofstream(path) << "an old one";
    for (const std::string& message : save_after(size, path, nothing)) CHECK(message == "");
    CHECK(saved_text(path).find("0.weight") != std::string::npos);
    for (const std::string& message : save_after(size, "/nowhere/x", nothing))
      CHECK_MESSAGE(message.find("/nowhere/x") != message.npos, message);
  }
}

TEST_CASE("save_on_rank0: the others name rank 0 if its save takes longer than they may wait") {
  for (const int size : {2, 3, 4}) {
    std::vector<std::string> messages(static_cast<std::size_t>(size));
    std::atomic<int> failed{0};
    CHECK_THROWS(run_threads(size, {}, [&](World& world) {
      nn::Linear model(3, 2);
      dist::DistributedDataParallel ddp(model.parameters(), {}, world);
      try {
        ddp.save_on_rank0(
            [&] {
              while (failed < size - 1) std::this_thread::yield();
            },
            dist::Seconds(0.3));
      } catch (const CommError& error) {
        messages[static_cast<std::size_t>(world.rank())] = error.what();
        ++failed;
        throw;
      }
    }));
    for (std::size_t r = 1; r < messages.size(); ++r)
      CHECK_MESSAGE(messages[r].find("waiting for rank 0") != std::string::npos, messages[r]);
  }
}
