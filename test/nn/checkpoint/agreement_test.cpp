// Checkpoints when one rank's part fails, one write fails, or others write the same name: all ranks
// learn why, and what can be saved is saved.

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "lockstep/lockstep.h"
#include "support/expect.h"
#include "support/temporary_folder.h"
#include "support/worlds.h"

using namespace lockstep;
using lockstep::test::TemporaryFolder;

namespace {

/// A part that fails where it is told to.
struct FailingPart {
  bool bad_save = false, bad_load = false, undefined = false;
  Tensor x = Tensor::zeros({2});
  nn::StateDict state_dict() const {
    check<StateError>(!bad_save, "this part cannot be saved");
    return {{"x", undefined ? Tensor() : x}};
  }
  void load_state_dict(const nn::StateDict& state) const {
    check<StateError>(!bad_load, "this part cannot be loaded");
    x.copy_from(state.at("x"));
  }
};

struct FailingJob {
  FailingJob(World& world, bool sharded)
      : model{nn::Linear(3, 4)},
        optimizer(model.parameters(), {.lr = 0.01}),
        ddp(model.parameters(), model.buffers(), world),
        checkpoint(ddp) {
    if (sharded) optimizer.shard(ddp);
    checkpoint.add_per_rank("own", own);
    checkpoint.add("model", model);
    checkpoint.add("optimizer", optimizer);
    checkpoint.add("step", taken);
  }
  FailingPart own;
  std::int64_t taken = 0;
  nn::Sequential model;
  optim::Adam optimizer;
  dist::DistributedDataParallel ddp;
  nn::Checkpoint checkpoint;
};

}  // namespace

TEST_SUITE_BEGIN("not-cpu not-late");  // the same files, whatever computes

TEST_CASE("checkpoint agreement: what fails on one rank is thrown on all, and they go on") {
  const TemporaryFolder folder;
  const std::string path = folder / "run";
  for (const int size : {1, 2, 3})
    for (const bool sharded : {false, true}) {
      CAPTURE(size);
      CAPTURE(sharded);
      run_threads(size, {}, [&](World& world) {
        FailingJob job(world, sharded);
        const bool last = world.rank() == size - 1;
        job.checkpoint.save(path);
        const auto fails = [&](const std::string& text, auto call) {
          test::expect_error<Error>(text, call);
          world.communicator().barrier("all are here").wait();
          job.own = FailingPart{};
          job.checkpoint.save(path);  // nothing is broken
        };
        job.own.bad_save = last;
        fails("cannot be saved", [&] { job.checkpoint.save(path); });
        job.own.undefined = last;
        fails("is undefined", [&] { job.checkpoint.save(path); });
        job.own.bad_save = last;
        fails("cannot be saved", [&] { job.checkpoint.load(path); });
        job.own.bad_load = last;
        fails("cannot be loaded", [&] { job.checkpoint.load(path); });
        const std::string mine = last ? folder / "elsewhere" : path;  // a folder that it cannot see
        fails("elsewhere", [&] { job.checkpoint.load(mine); });
      });
    }
}

TEST_CASE("checkpoint agreement: ranks that load other files learn of it, and load nothing") {
  const TemporaryFolder folder;
  for (const int size : {2, 3})
    for (int odd = 0; odd < size; ++odd)
      run_threads(size, {}, [&](World& world) {
        FailingJob job(world, false);
        for (const char* name : {"first", "second"}) {
          ++job.taken;
          job.checkpoint.save(folder / name);
        }
        job.taken = 9;
        const std::string mine = folder / (world.rank() == odd ? "second" : "first");
        test::expect_error<StateError>("[checkpoints] the ranks differ",
                                       [&] { job.checkpoint.load(mine); });
        test::expect(job.taken == 9, "step {}", job.taken);
        job.checkpoint.load(folder / "first");
        test::expect(job.taken == 1, "step {}", job.taken);
      });
}

TEST_CASE("checkpoint agreement: a name is taken once, by a part or by a number") {
  std::int64_t number = 0, other = 0;
  FailingPart part;
  nn::Checkpoint checkpoint;
  checkpoint.add("number", number);
  checkpoint.add("part", part);
  for (const char* taken : {"number", "part", "random"}) {
    CAPTURE(taken);
    CHECK_THROWS_AS(checkpoint.add(taken, other), UsageError);
    CHECK_THROWS_AS(checkpoint.add(taken, part), UsageError);
    CHECK_THROWS_AS(checkpoint.add_per_rank(taken, part), UsageError);
  }
  for (const char* bad : {"", "a/b", "/", "rank 1"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(checkpoint.add(bad, other), UsageError);
    CHECK_THROWS_AS(checkpoint.add(bad, part), UsageError);
    CHECK_THROWS_AS(checkpoint.add_per_rank(bad, part), UsageError);
  }
}

TEST_CASE("checkpoint agreement: asynchronous errors are told on all ranks, whatever they pass") {
  const TemporaryFolder folder;
  run_threads(3, {}, [&](World& world) {
    FailingJob job(world, false);
    const auto named = [&](const std::string& path) { return world.rank() == 0 ? path : ""; };
    job.checkpoint.save(named(folder / "run"), {.async = true});  // rank 0 writes
    job.checkpoint.wait();
    world.communicator().barrier("all have waited").wait();
    job.checkpoint.save("", {.async = true});
    test::expect_error<Error>("[save]", [&] { job.checkpoint.wait(); });
    job.checkpoint.wait();
  });
}

TEST_CASE("checkpoint agreement: after a write that failed the next state is saved all the same") {
  const TemporaryFolder folder;
  for (const bool async : {false, true})
    for (const int size : {1, 2}) {
      const std::string path = folder / "made/run";
      std::filesystem::remove_all(folder / "made");
      run_threads(size, {}, [&](World& world) {
        FailingJob job(world, false);
        job.taken = 2;
        job.checkpoint.save(path, {.async = true});  // there is no such folder yet
        if (world.rank() == 0) {
          while (!job.checkpoint.is_written()) std::this_thread::yield();
          std::filesystem::create_directory(folder / "made");
        }
        world.communicator().barrier("made").wait();
        job.taken = 3;
        test::expect_error<Error>("made/run", [&] { job.checkpoint.save(path, {.async = async}); });
        job.checkpoint.wait();
      });
      CHECK(nn::Checkpoint::manifest(path).numbers.at("step") == 3);
    }
}

TEST_CASE("checkpoint agreement: what each rank has of its own is not saved as if all had it") {
  const TemporaryFolder folder;
  for (const char* which : {"model", "optimizer", "none"}) {
    CAPTURE(which);
    const std::string kind = which;
    const auto messages = test::messages_on_threads(2, [&](World& world) {
      nn::Sequential model{nn::Linear(3, 4)};
      const Parameter own(Tensor::full({2}, world.rank()), "own");
      own.keep_local();
      std::vector<Parameter> all = model.parameters();
      all.push_back(own);
      optim::SGD together(all, {.lr = 1, .momentum = 0.9});
      optim::SGD alike(model.parameters(), {.lr = 1}), apart({own}, {.lr = 1, .momentum = 0.9});
      if (kind == "model") model.parameters()[1].keep_local();
      dist::DistributedDataParallel ddp({model.parameters()[0]}, {}, world);
      nn::Checkpoint checkpoint(ddp);
      checkpoint.add("model", model);
      kind == "optimizer" ? checkpoint.add("optimizer", together)
                          : checkpoint.add("optimizer", alike);
      checkpoint.add_per_rank("own", apart);
      checkpoint.save(folder / "run");
    });
    if (kind == "none") test::check_all_well(messages);
    if (kind == "optimizer")
      test::check_all_say(
          messages, {"[save] 'optimizer' has 'own', which is each rank's own", "add_per_rank()"});
    if (kind == "model")
      test::check_all_say(messages, {"[save] 'model' has '0.bias', which is each rank's own"});
    CHECK(std::filesystem::exists(folder / "run") == (kind == "none"));
  }
}

TEST_CASE("checkpoint agreement: older files are kept where a link leads") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "disk");
  std::filesystem::create_symlink("disk/run", folder / "run");
  std::int64_t step = 0;
  nn::Checkpoint checkpoint;
  checkpoint.add("step", step);
  for (step = 1; step <= 3; ++step) checkpoint.save(folder / "run", {.keep = 3});
  for (const auto& [name, saved] : {std::pair("run", 3), std::pair("disk/run", 3),
                                    std::pair("disk/run.1", 2), std::pair("disk/run.2", 1)})
    CHECK(nn::Checkpoint::manifest(folder / name).numbers.at("step") == saved);
  CHECK(std::filesystem::is_symlink(folder / "run"));
  CHECK_FALSE(std::filesystem::exists(folder / "run.1"));
}

TEST_CASE("checkpoint agreement: two that save under one name do not fail, and leave a whole one") {
  const TemporaryFolder folder;
  const std::string path = folder / "run";
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int k = 0; k < 3; ++k)
    threads.emplace_back([&, k] {
      std::int64_t step = k;
      nn::Checkpoint checkpoint;
      checkpoint.add("step", step);
      for (int i = 0; i < 40; ++i) try {
          checkpoint.save(path, {.keep = 3});
        } catch (const Error&) {
          ++failed;
        }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(failed == 0);
  for (const char* name : {"run", "run.1"})
    CHECK(nn::Checkpoint::manifest(folder / name).numbers.contains("step"));
}

TEST_CASE("checkpoint agreement: an error lists only files that are there") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "folder");
  std::int64_t step = 0;
  nn::Checkpoint checkpoint;
  checkpoint.add("step", step);
  CHECK_THROWS_WITH_AS(checkpoint.save(folder / "folder"),
                       doctest::Contains("not a regular file (there is no older one)"), DataError);
}

TEST_SUITE_END();
