// A checkpoint that another number of ranks loads. With lanes the run reaches the bits of one that
// was not interrupted, whatever is drawn. Without, what cannot go on is said.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <optional>

#include "lockstep/core/generator.h"
#include "lockstep/lockstep.h"
#include "support/expect.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using lockstep::test::expect;
using lockstep::test::TemporaryFolder;

namespace {

data::TensorDataset plain_samples() {
  Generator draw(11);
  const Tensor x = Tensor::empty({50, 6}), y = Tensor::empty({50, 3});
  draw.normal(x);
  draw.normal(y);
  return data::TensorDataset({{"x", x}, {"y", y}});
}

/// Each sample in each epoch with noise of its own.
data::Map noisy_samples() {
  return data::Map(
      plain_samples(),
      [](data::Fields sample, data::Random& random) {
        const Tensor x = sample["x"].clone();
        for (float& value : x.span<float>()) value += static_cast<float>(0.1 * random.normal());
        sample.set("x", x);
        return sample;
      },
      7);
}

/// Dropout, noise and shuffles, in lanes. Runs from `load` (or the beginning), for all steps of
/// three epochs or until step `until`, where it saves. Returns the digest of what is left.
std::string train_in_lanes(World& world, const std::string& load, int until,
                           const std::string& save, std::uint64_t seed = 1) {
  manual_seed(seed);
  nn::Sequential model{nn::Linear(6, 16), nn::BatchNorm(16), nn::Dropout(0.4),
                       nn::ReLU(),        nn::Linear(16, 3), nn::Dropout(0.1)};
  nn::convert_sync_batchnorm(model, world);
  optim::Adam optimizer(model.parameters(), {.lr = 0.01});
  dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
  std::int64_t epoch = 0, position = 0, steps = 0;
  nn::Checkpoint checkpoint(ddp);
  checkpoint.add("model", model);
  checkpoint.add("optimizer", optimizer);
  checkpoint.add("epoch", epoch);
  checkpoint.add("position", position);
  checkpoint.add("steps", steps);
  if (!load.empty()) checkpoint.load(load);
  const data::Map set = noisy_samples();
  for (; epoch < 3; ++epoch, position = 0)
    for (const data::Batch& batch :
         data::Loader(set, {.batch = 20, .shuffle = true, .begin = position, .lanes = 4}, world,
                      static_cast<int>(epoch))) {
      Tape tape;
      tape.backward(nn::mse(model(batch.x), batch.y), batch.weight);
      optimizer.step();
      optimizer.zero_grad();
      position = batch.position;
      if (++steps != until) continue;
      checkpoint.save(save);
      return parameter_digest(model.parameters());
    }
  std::vector<Parameter> all = model.parameters();
  for (const Buffer& buffer : model.buffers())
    if (buffer.value.dtype() == DType::f32) all.emplace_back(buffer.value, buffer.name);
  return parameter_digest(all);
}

/// What `body` writes to stderr.
std::string stderr_of(const TemporaryFolder& folder, const std::function<void()>& body) {
  const std::string path = folder / "stderr";
  const int file = ::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600), old = ::dup(2);
  ::dup2(file, 2);
  ::close(file);
  body();
  ::dup2(old, 2);
  ::close(old);
  std::ifstream text(path);
  return {std::istreambuf_iterator<char>(text), {}};
}

/// A run that only draws: `seed_of(rank)` is each rank's seed.
struct Drawing {
  using SeedOf = std::function<std::uint64_t(int rank)>;
  static std::vector<double> next() {
    const Tensor mask = dropout(Tensor::ones({4}), 0.5), normal = Tensor::randn({2});
    std::vector<double> all;
    for (const Tensor& x : {mask, normal})
      for (const float value : x.to_vector<float>()) all.push_back(value);
    return all;
  }
  /// Draws, saves, and draws again: what each rank has drawn after the save.
  static std::vector<std::vector<double>> save(const std::string& path, int ranks,
                                               const SeedOf& seed_of) {
    return run(ranks, seed_of, [&](nn::Checkpoint& c) { c.save(path); });
  }
  static std::vector<std::vector<double>> load(const std::string& path, int ranks,
                                               const SeedOf& seed_of) {
    return run(ranks, seed_of, [&](nn::Checkpoint& c) { c.load(path); });
  }
  static std::vector<std::vector<double>> run(int ranks, const SeedOf& seed_of,
                                              const std::function<void(nn::Checkpoint&)>& act) {
    std::vector<std::vector<double>> drawn(static_cast<std::size_t>(ranks));
    run_threads(ranks, {}, [&](World& world) {
      const Parameter w(Tensor::ones({2}), "w");
      dist::DistributedDataParallel ddp({w}, {}, world);
      nn::Checkpoint checkpoint(ddp);
      manual_seed(seed_of(world.rank()));
      (void)next();
      act(checkpoint);
      drawn[static_cast<std::size_t>(world.rank())] = next();
    });
    return drawn;
  }
};

}  // namespace

TEST_SUITE_BEGIN("not-cpu not-late");  // the same files, whatever computes

TEST_CASE("checkpoint: with lanes, saved on n ranks and loaded by m, the bits are the same") {
  const TemporaryFolder folder;
  const std::string path = folder / "run";
  const auto on = [](int ranks, const auto& body) {
    std::string digest;
    run_threads(ranks, {}, [&](World& world) {
      const std::string mine = body(world);
      if (world.rank() == 0) digest = mine;
    });
    return digest;
  };
  const std::string whole = on(1, [](World& world) { return train_in_lanes(world, "", 0, ""); });
  CHECK(on(3, [](World& world) { return train_in_lanes(world, "", 0, ""); }) == whole);
  for (const auto& [saved, loaded] : {std::pair(1, 2), {1, 3}, {3, 1}, {2, 4}, {4, 3}, {2, 2}})
    for (const int until : {2, 3, 7}) {  // within an epoch, and at its end
      CAPTURE(saved);
      CAPTURE(loaded);
      CAPTURE(until);
      on(saved,
         [&, until = until](World& world) { return train_in_lanes(world, "", until, path); });
      const std::string note = stderr_of(folder, [&, loaded = loaded] {
        // Another seed: all that is drawn comes from the checkpoint.
        CHECK(on(loaded, [&](World& world) { return train_in_lanes(world, path, 0, "", 5); }) ==
              whole);
      });
      CHECK(note == "");
    }
}

TEST_CASE("checkpoint: a stream that all ranks have goes on, and one of each rank's own is noted") {
  const TemporaryFolder folder;
  const std::string path = folder / "run";
  const auto same = [](int) { return std::uint64_t{3}; };
  const auto own = [](int rank) { return 10 + static_cast<std::uint64_t>(rank); };
  const auto other = [](int) { return std::uint64_t{4}; };
  const auto after = Drawing::save(path, 3, same);
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    const std::string note = stderr_of(folder, [&] {
      for (const auto& drawn : Drawing::load(path, ranks, other)) CHECK(drawn == after[0]);
    });
    CHECK(note == "");
  }
  // The ranks that load have streams of their own: they keep them.
  const auto without = Drawing::run(2, own, [](nn::Checkpoint&) {});
  std::string note = stderr_of(folder, [&] { CHECK(Drawing::load(path, 2, own) == without); });
  const std::string expected =
      "note: [load] " + path +
      ": 3 ranks have saved it, and 2 load it: what each had of its own is not loaded, "
      "'random/mt19937' and 'random/philox' (random generators draw other numbers than the run "
      "that was saved would have drawn)\n";
  CHECK(note == expected);
  // The ranks that saved had.
  Drawing::save(path, 3, own);
  const auto alone = Drawing::run(1, same, [](nn::Checkpoint&) {});
  note = stderr_of(folder, [&] { CHECK(Drawing::load(path, 1, same) == alone); });
  CHECK(note.find("3 ranks have saved it, and 1 load it") != std::string::npos);
  // As many ranks: each goes on with its own.
  const auto three = Drawing::save(path, 3, own);
  note = stderr_of(folder, [&] { CHECK(Drawing::load(path, 3, same) == three); });
  CHECK(note == "");
}

TEST_CASE("checkpoint: a part of each rank's own that is not loaded is noted") {
  const TemporaryFolder folder;
  const std::string path = folder / "run";
  struct Own {
    Tensor x;
    nn::StateDict state_dict() const { return {{"x", x}}; }
    void load_state_dict(const nn::StateDict& state) const { x.copy_from(state.at("x")); }
  };
  const auto on = [&](int ranks, bool load) {
    run_threads(ranks, {}, [&](World& world) {
      const Parameter w(Tensor::ones({2}), "w");
      dist::DistributedDataParallel ddp({w}, {}, world);
      Own mine{Tensor::full({1}, load ? 9 : world.rank())};
      manual_seed(1);
      nn::Checkpoint checkpoint(ddp);
      checkpoint.add_per_rank("window", mine);
      load ? checkpoint.load(path) : checkpoint.save(path);
      const double expected = !load || ranks == 2 ? world.rank() : 9;
      expect(mine.x.item() == expected, "{}", mine.x.item());
    });
  };
  on(2, false);
  CHECK(stderr_of(folder, [&] { on(2, true); }) == "");
  CHECK(stderr_of(folder, [&] { on(3, true); }).find("is not loaded, 'window' (") !=
        std::string::npos);
}

TEST_SUITE_END();
