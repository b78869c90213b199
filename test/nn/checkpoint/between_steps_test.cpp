// A checkpoint is taken between two steps. A gradient on which an optimizer is still to step, and
// what else belongs to a step that is not over, is in no file: whoever saves or loads then is
// refused, on all ranks, by the parameter's name.

#include <doctest/doctest.h>

#include <filesystem>
#include <functional>
#include <optional>

#include "lockstep/lockstep.h"
#include "support/expect.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using lockstep::test::expect;
using lockstep::test::expect_error;
using lockstep::test::TemporaryFolder;

namespace {

constexpr const char* unstepped_text = "on which no optimizer has stepped";

struct UnsavedJob {
  explicit UnsavedJob(World& world, bool with_ddp = true) : rank(world.rank()), size(world.size()) {
    if (with_ddp) ddp.emplace(model.parameters(), model.buffers(), world);
    with_ddp ? checkpoint.emplace(*ddp) : checkpoint.emplace();
    checkpoint->add("model", model);
    checkpoint->add("optimizer", optimizer);
    checkpoint->add("step", step);
  }
  void backward(bool sync = true) {
    Tape tape;
    const Tensor x = Tensor::full({4, 3}, 0.1 * rank + 0.3);
    tape.backward(mean(square(model(x))), Weight{4, 4.0 * size}, {.sync = sync});
  }
  void take_step() {
    backward();
    optimizer.step();
    ++step;
  }

  int rank, size;
  nn::Sequential model{nn::Linear(3, 4), nn::ReLU(), nn::Linear(4, 2)};
  optim::SGD optimizer{model.parameters(), {.lr = 0.1, .momentum = 0.9}};
  std::optional<dist::DistributedDataParallel> ddp;
  std::optional<nn::Checkpoint> checkpoint;
  std::int64_t step = 0;
};

void expect_unsaved(UnsavedJob& job, const std::string& path) {
  for (const bool async : {false, true})
    expect_error<StateError>(unstepped_text, [&] { job.checkpoint->save(path, {.async = async}); });
  expect_error<StateError>("'0.weight'", [&] { job.checkpoint->save(path); });
  expect_error<StateError>(unstepped_text, [&] { job.checkpoint->load(path); });
  expect_error<StateError>(unstepped_text, [&] { job.checkpoint->mark(); });
}

}  // namespace

TEST_SUITE_BEGIN("not-cpu not-late");  // the same files, whatever computes

TEST_CASE("checkpoint: refused within a window, and before the step, on any number of ranks") {
  const TemporaryFolder folder;
  const std::string path = folder / "run";
  for (const int ranks : {1, 2, 3})
    run_threads(ranks, {}, [&](World& world) {
      UnsavedJob job(world);
      job.checkpoint->save(path);
      const std::string before = nn::Checkpoint::manifest(path).sha256.at("model/0.weight");
      for (int k = 0; k < 2; ++k) {
        job.backward(false);
        expect_unsaved(job, path);
        expect_error<StateError>("let a backward synchronize it",
                                 [&] { job.checkpoint->save(path); });
      }
      job.backward();
      expect_unsaved(job, path);
      expect_error<StateError>("first call step()", [&] { job.checkpoint->save(path); });
      job.optimizer.step();
      expect(nn::Checkpoint::manifest(path).sha256.at("model/0.weight") == before,
             "an earlier file was replaced");
      world.communicator().barrier("read").wait();
      job.checkpoint->save(path, {.async = true});  // the gradient is there, and was stepped on
      job.checkpoint->wait();
      job.checkpoint->load(path);
      job.backward();  // onto the gradient that was stepped on
      expect_unsaved(job, path);
      job.optimizer.zero_grad();
      job.checkpoint->save(path);
      job.checkpoint->mark();
    });
}

TEST_CASE("checkpoint: a window on one rank alone is refused on all") {
  const TemporaryFolder folder;
  const std::string path = folder / "run";
  run_threads(3, {}, [&](World& world) {
    UnsavedJob job(world);
    job.take_step();
    job.optimizer.zero_grad();
    if (world.rank() == 1) job.backward(false);
    expect_error<Error>(unstepped_text, [&] { job.checkpoint->save(path); });
    expect_error<Error>(unstepped_text, [&] { job.checkpoint->load(path); });
    expect(!std::filesystem::exists(path), "a file");
    job.ddp->synchronize();
    job.optimizer.step();
    job.checkpoint->save(path);
  });
}

TEST_CASE("checkpoint: without DDP, a gradient is refused until it is stepped on or zeroed") {
  const TemporaryFolder folder;
  const std::string path = folder / "run";
  run_threads(1, {}, [&](World& world) {
    UnsavedJob job(world, false);
    job.take_step();
    job.checkpoint->save(path);
    job.backward();
    expect_unsaved(job, path);
    expect_error<StateError>(unstepped_text, [&] { job.checkpoint->share(world, job.step); });
    job.optimizer.step(optim::local);
    job.checkpoint->save(path);
    job.optimizer.zero_grad();
    job.checkpoint->share(world, job.step);
  });
}

TEST_CASE("checkpoint: an optimizer that was not added, and the state of one in save_on_rank0") {
  const TemporaryFolder folder;
  const std::string path = folder / "run";
  run_threads(2, {}, [&](World& world) {
    UnsavedJob job(world);
    nn::Checkpoint only_model(*job.ddp);
    only_model.add("model", job.model);
    nn::Checkpoint nothing(*job.ddp);
    job.backward();
    expect_error<StateError>(unstepped_text, [&] { only_model.save(path); });
    expect_error<StateError>(unstepped_text, [&] { nothing.save(path); });
    expect_error<StateError>(unstepped_text, [&] { only_model.load(path); });
    expect_error<StateError>(unstepped_text, [&] { nothing.load(path); });
    expect_error<Error>(unstepped_text, [&] {
      job.ddp->save_on_rank0([&] { nn::save_safetensors(path, job.optimizer.state_dict()); });
    });
    expect_error<StateError>(unstepped_text, [&] { job.optimizer.load_state_dict({}); });
    // The model alone is what the last step has left.
    job.ddp->save_on_rank0([&] { nn::save_safetensors(path, job.model.state_dict()); });
    job.optimizer.step();
    only_model.save(path);
  });
}

TEST_CASE(
    "checkpoint: what another program reads of a gradient, without an optimizer, is its own") {
  const TemporaryFolder folder;
  nn::Sequential model{nn::Linear(3, 1)};
  nn::Checkpoint checkpoint;
  checkpoint.add("model", model);
  Tape tape;
  tape.backward(sum(model(Tensor::ones({1, 3}))));
  CHECK(model.parameters()[0].gradient().defined());
  CHECK_NOTHROW(checkpoint.save(folder / "run"));
}

TEST_CASE("checkpoint: a GradScaler between step() and update(), and after a step left out") {
  const TemporaryFolder folder;
  run_threads(2, {}, [&](World& world) {
    UnsavedJob job(world);
    optim::GradScaler scaler({.scale = 4});
    job.checkpoint->add("scaler", scaler);
    for (const bool infinite : {false, true, false}) {
      {
        Tape tape;
        Tensor x = Tensor::full({4, 3}, 0.5);
        if (infinite) x.fill(1e38);
        tape.backward(scaler.scale(mean(square(job.model(x)))), Weight{4});
      }
      expect_error<StateError>(unstepped_text, [&] { job.checkpoint->save(folder / "run"); });
      expect(scaler.step(job.optimizer) != infinite, "an infinity");
      expect_error<StateError>("call update() first",
                               [&] { job.checkpoint->save(folder / "run"); });
      expect_error<StateError>("call update() first", [&] { scaler.load_state_dict({}); });
      scaler.update();
      job.checkpoint->save(folder / "run");  // gradients that are still there mean nothing
      job.optimizer.zero_grad();
    }
  });
}

TEST_CASE("checkpoint: averages are not taken for values, nor stepped, nor averaged again") {
  const TemporaryFolder folder;
  run_threads(2, {}, [&](World& world) {
    UnsavedJob job(world);
    optim::Ema ema(job.model.parameters(), 0.9), other(job.model.parameters(), 0.5);
    job.take_step();
    job.optimizer.zero_grad();
    job.backward();
    const auto weights = [&] { return parameter_digest(job.model.parameters()); };
    const std::string value = weights();
    {
      const optim::Ema::Applied applied(ema);
      const std::string average = weights();
      expect(average != value, "no average");
      expect_error<StateError>("holds an average", [&] { job.optimizer.step(); });
      expect_error<StateError>("holds an average", [&] { job.optimizer.step(optim::local); });
      expect_error<StateError>("holds an average", [&] { job.checkpoint->save(folder / "run"); });
      expect_error<StateError>("another Ema's average", [&] { other.update(); });
      expect_error<StateError>("another Ema's average",
                               [&] { const optim::Ema::Applied second(other); });
      expect(weights() == average, "the average was changed");
    }
    expect(weights() == value, "not the value");
    job.optimizer.step();
    other.update();
    job.checkpoint->save(folder / "run");
  });
}

TEST_CASE("checkpoint: a model that was moved away is not saved as an empty one") {
  const test::TemporaryFolder folder;
  const std::string path = folder / "run";
  const auto make = [] { return nn::Sequential{nn::Linear(2, 3), nn::Linear(3, 1)}; };
  const auto check_refused = [&](nn::Checkpoint& checkpoint, const char* part) {
    const auto refuses = doctest::Contains(part);
    CHECK_THROWS_WITH_AS(checkpoint.save(path), refuses, StateError);
    CHECK_THROWS_WITH_AS(checkpoint.load(path), refuses, StateError);
    CHECK_THROWS_WITH_AS(checkpoint.mark(), refuses, StateError);
    CHECK(!std::filesystem::exists(path));
  };
  for (const bool per_rank : {false, true}) {
    nn::Sequential model = make();
    nn::Checkpoint checkpoint;
    per_rank ? checkpoint.add_per_rank("net", model) : checkpoint.add("net", model);
    const nn::Sequential elsewhere = std::move(model);
    check_refused(checkpoint, "'net' had 4 parameters when it was added, and has 0");
    model = make();  // at the same place
    checkpoint.save(path);
    std::filesystem::remove(path);
  }
  nn::Sequential model = make();
  nn::Checkpoint checkpoint;
  checkpoint.add("net", model);
  const nn::Linear head = std::move(model.at<nn::Linear>("1"));
  check_refused(checkpoint, "'net' had 4 parameters when it was added, and has 2");
}

TEST_SUITE_END();
