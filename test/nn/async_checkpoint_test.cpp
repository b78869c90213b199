// Checkpoints that a thread writes: the state of the moment of the call, one after the other, and
// no error that gets lost.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "lockstep/lockstep.h"
#include "support/expect.h"
#include "support/temporary_folder.h"
#include "support/text.h"

using namespace lockstep;
using lockstep::test::TemporaryFolder;

namespace {

std::string text_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Some training with state of every kind: of all ranks alike, of each rank, and a number.
struct Job {
  Job(World& world, bool sharded)
      : model{nn::Linear(3, 40), nn::ReLU(), nn::Dropout(0.2), nn::Linear(40, 2)},
        optimizer(model.parameters(), {.lr = 0.01}),
        ddp(model.parameters(), model.buffers(), world),
        own{Tensor::full({3}, world.rank())},
        checkpoint(ddp) {
    if (sharded) optimizer.shard(ddp);
    checkpoint.add("model", model);
    checkpoint.add("optimizer", optimizer);
    checkpoint.add_per_rank("own", own);
    checkpoint.add("step", taken);
  }

  void step() {
    Tape tape;
    const Tensor x = Tensor::full({4, 3}, 0.1 * static_cast<double>(++taken));
    tape.backward(mean(square(model(x))), Weight{4});
    optimizer.step();
    optimizer.zero_grad();
    own.x.fill(static_cast<double>(10 * taken + ddp.communicator().rank()));
  }

  struct Own {
    Tensor x;
    nn::StateDict state_dict() const { return {{"x", x}}; }
    void load_state_dict(const nn::StateDict& state) const { x.copy_from(state.at("x")); }
  };
  std::int64_t taken = 0;
  nn::Sequential model;
  optim::Adam optimizer;
  dist::DistributedDataParallel ddp;
  Own own;
  nn::Checkpoint checkpoint;
};

/// What `call` writes on stderr.
std::string on_stderr(const TemporaryFolder& folder, const std::function<void()>& call) {
  const std::string path = folder / "stderr";
  const int kept = ::dup(STDERR_FILENO);
  const int file = ::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
  REQUIRE((kept >= 0 && file >= 0));
  ::dup2(file, STDERR_FILENO);
  call();
  ::dup2(kept, STDERR_FILENO);
  ::close(kept);
  ::close(file);
  return text_of_file(path);
}

}  // namespace

TEST_CASE("async checkpoint: what is written is the state of the call, whatever is done after it") {
  for (const int size : {1, 2, 3, 4})
    for (const bool sharded : {false, true}) {
      CAPTURE(size);
      CAPTURE(sharded);
      const TemporaryFolder folder;
      run_threads(size, {}, [&](World& world) {
        manual_seed(7);
        Job job(world, sharded);
        for (int round = 0; round < 4; ++round) {
          const std::string path = folder / "async", other = folder / "plain";
          job.own.x = Tensor::full({5 + round % 2 * 300}, world.rank());  // of another size
          job.checkpoint.save(other);
          job.checkpoint.save(path, {.async = true});
          job.step();
          job.step();
          job.checkpoint.wait();
          job.checkpoint.wait();  // nothing to wait for
          if (world.rank() > 0) continue;
          const std::string plain = text_of_file(other);
          test::expect(!plain.empty() && plain == text_of_file(path), "round {}", round);
        }
      });
    }
}

TEST_CASE("async checkpoint: the next one waits for it, and so does load") {
  const TemporaryFolder folder;
  const std::string path = folder / "run";
  run_threads(2, {}, [&](World& world) {
    manual_seed(7);
    Job job(world, false);
    for (int i = 0; i < 5; ++i) {
      job.step();
      job.checkpoint.save(path, {.keep = 3, .async = true});
    }
    job.step();
    job.checkpoint.load(path);
    test::expect(job.taken == 5, "step {}", job.taken);
    test::expect(job.own.x.to_vector<float>()[1] == static_cast<float>(50 + world.rank()),
                 "another rank's part");
  });
  for (const auto& [name, step] :
       {std::pair("run", 5), std::pair("run.1", 4), std::pair("run.2", 3)})
    CHECK(nn::Checkpoint::manifest(folder / name).numbers.at("step") == step);
}

TEST_CASE("async checkpoint: an error is thrown by the next call, on all ranks, and once") {
  const TemporaryFolder folder;
  const std::string path = folder / "gone/run";
  const auto make_it_fail = [&](const World& world, nn::Checkpoint& checkpoint) {
    if (world.rank() == 0) std::filesystem::create_directory(folder / "gone");
    world.communicator().barrier("made").wait();
    checkpoint.save(path);
    world.communicator().barrier("saved").wait();
    if (world.rank() == 0) std::filesystem::remove_all(folder / "gone");
    checkpoint.save(path, {.async = true});
  };
  for (const int size : {1, 3}) {
    CAPTURE(size);
    run_threads(size, {}, [&](World& world) {
      Job job(world, false);
      nn::Checkpoint& checkpoint = job.checkpoint;
      const std::function<void()> next[] = {
          [&] { checkpoint.wait(); }, [&] { checkpoint.save(folder / "other"); },
          [&] { checkpoint.save(folder / "other", {.async = true}); },
          [&] { checkpoint.load(folder / "other"); }};
      checkpoint.save(folder / "other");
      for (const auto& call : next) {
        make_it_fail(world, checkpoint);
        test::expect_error<Error>("'" + path + "'", call);
        checkpoint.wait();
        call();
        checkpoint.wait();
      }
    });
  }
}

TEST_CASE("async checkpoint: at its end the file is whole, or one line tells why not") {
  const TemporaryFolder folder;
  const std::string path = folder / "run", nowhere = folder / "none/run";
  nn::Sequential model{nn::Linear(300, 300)};
  const auto save = [&](const std::string& where) {
    return on_stderr(folder, [&] {
      nn::Checkpoint checkpoint;
      checkpoint.add("model", model);
      checkpoint.save(where, {.async = true});
    });
  };
  CHECK(save(path).empty());
  CHECK(nn::load_safetensors(path).contains("model/0.weight"));
  const std::string told = save(nowhere);
  CAPTURE(told);
  CHECK(told.starts_with("error: [save] "));
  CHECK(test::contains(told, nowhere));
  CHECK(test::count(told, "\n") == 1);
}
