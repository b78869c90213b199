// Models that are made and dropped one after another in one World (cross validation, a search for
// options) leave nothing: no mapping, descriptor or thread, no memory, no entry of a list.

#include <doctest/doctest.h>
#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "dist/ddp/halves_hook.h"
#include "lockstep/dist/audit/audit.h"
#include "lockstep/dist/observe/hash_trace.h"
#include "lockstep/lockstep.h"
#include "support/expect.h"
#include "support/forked_ranks.h"
#include "support/temporary_folder.h"

namespace lockstep::many_models {

using lockstep::test::expect;

namespace {

/// What this process holds. All threads take memory from one arena: a thread that begins to use one
/// of its own maps 64 MiB for it.
struct Footprint {
  std::int64_t mappings = 0, mapped = 0, shared = 0;  // their number; bytes of all; of memfds
  std::int64_t descriptors = 0, threads = 0;
  std::int64_t heap = 0;  // bytes that are in use
};

Footprint footprint() {
  Footprint now;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line); ++now.mappings) {
    const std::size_t dash = line.find('-');
    const auto bytes = static_cast<std::int64_t>(std::stoull(line.substr(dash + 1), nullptr, 16) -
                                                 std::stoull(line.substr(0, dash), nullptr, 16));
    now.mapped += bytes;
    if (line.find("memfd:") != std::string::npos) now.shared += bytes;
  }
  now.descriptors = test::entries("/proc/self/fd");
  now.threads = test::entries("/proc/self/task");
  now.heap = static_cast<std::int64_t>(::mallinfo2().uordblks);
  return now;
}

using Model = std::function<void(World&, const std::string& folder)>;

constexpr std::int64_t width = 64;
constexpr std::int64_t gradient_bytes = (width * width + width) * 2 * 4;

void train(nn::Sequential& model, dist::DistributedDataParallel& ddp, optim::Optimizer& optimizer,
           World& world) {
  for (int step = 0; step < 2; ++step) {
    Tape tape;
    const Tensor x = Tensor::full({4, width}, world.rank() + step + 1);
    tape.backward(nn::mse(model(x), x));
    optimizer.step();
    optimizer.zero_grad();
  }
  expect(ddp.last_step().verdict == dist::StepVerdict::commit, "no step was taken");
}

nn::Sequential make_model() {
  return nn::Sequential{nn::Linear(width, width), nn::ReLU(), nn::Linear(width, width)};
}

void plain(World& world, const std::string&) {
  nn::Sequential model = make_model();
  optim::SGD optimizer(model.parameters(), {.lr = 0.01, .momentum = 0.9});
  dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
  train(model, ddp, optimizer, world);
}

void sharded(World& world, const std::string&) {
  nn::Sequential model = make_model();
  optim::Adam optimizer(model.parameters(), {.lr = 0.01});
  dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
  optimizer.shard(ddp);
  train(model, ddp, optimizer, world);
}

void normalized(World& world, const std::string&) {
  nn::Sequential model{nn::Linear(width, width), nn::BatchNorm(width), nn::Linear(width, width)};
  nn::convert_sync_batchnorm(model, world);
  optim::SGD optimizer(model.parameters(), {.lr = 0.01});
  dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
  train(model, ddp, optimizer, world);
}

void hooked(World& world, const std::string&) {
  const std::shared_ptr<dist::CommunicationHook> hooks[] = {dist::compress(DType::bf16),
                                                            std::make_shared<test::HalvesHook>()};
  for (const auto& hook : hooks) {
    nn::Sequential model = make_model();
    optim::SGD optimizer(model.parameters(), {.lr = 0.01});
    dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world, {.hook = hook});
    train(model, ddp, optimizer, world);
  }
}

void in_group(World& world, const std::string&) {
  World all = *world.split(0);  // with regions, streams and layers of its own
  normalized(all, "");
}

void traced(World& world, const std::string& folder) {
  const dist::HashTrace hashes(world, folder + "/hashes");
  const dist::Trace trace(world, folder + "/trace");
  plain(world, folder);
}

void audited(World& world, const std::string&) {
  nn::Sequential model = make_model();
  optim::SGD optimizer(model.parameters(), {.lr = 0.01});
  dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
  dist::Audit audit(ddp, {.every = 1});
  const Tensor x = Tensor::full({8, width}, 1);
  const data::TensorDataset samples({{"x", x}, {"y", x}});
  const data::Loader loader(samples, {.batch = 8, .lanes = 4}, world, 0);
  for (const data::Batch& batch : loader) {
    (void)audit.backward(loader, batch,
                         [&](const data::Batch& b) { return nn::mse(model(b.x), b.y); });
    optimizer.step();
    optimizer.zero_grad();
  }
}

// The ranks drop their models at different times: the next collective is the next model's.
void dropped_late(World& world, const std::string& folder) {
  thread_local std::unique_ptr<nn::Sequential> kept;
  thread_local Tensor gradient;
  auto model = std::make_unique<nn::Sequential>(make_model());
  optim::SGD optimizer(model->parameters(), {.lr = 0.01});
  {
    dist::DistributedDataParallel ddp(model->parameters(), {}, world);
    train(*model, ddp, optimizer, world);
    if (world.rank() == 1) gradient = model->parameters().front().gradient_slot();
  }
  if (world.rank() == 1) kept = std::move(model);
  plain(world, folder);
}

struct Kind {
  const char* name;
  Model model;
  int models;
};
const Kind kinds[] = {{"plain", plain, 120},          {"sharded", sharded, 60},
                      {"normalized", normalized, 30}, {"hooked", hooked, 30},
                      {"in a group", in_group, 60},   {"traced", traced, 30},
                      {"audited", audited, 30},       {"dropped late", dropped_late, 30}};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;  // a sanitizer keeps memory for a while, and takes its time
#else
constexpr bool sanitized = false;
#endif

constexpr int rounds = 6;

/// What is more than `most` in every round of `models` grows with each model; what other threads
/// hold by chance, or take for good once, is not there in one of the rounds.
void check_growth(const Kind& kind, int models, const char* what,
                  const std::vector<Footprint>& seen, std::int64_t Footprint::*held,
                  std::int64_t most) {
  std::string all;
  std::int64_t least = seen[1].*held - seen[0].*held;
  for (std::size_t k = 0; k < seen.size(); ++k) {
    all += " " + std::to_string(seen[k].*held);
    if (k > 0) least = std::min(least, seen[k].*held - seen[k - 1].*held);
  }
  expect(least <= most, "{}: every {} models add {} or more {}: {}", kind.name, models, least, what,
         all);
}

/// On every rank. Of ranks that are threads, rank 0 looks for all.
void check_constant(World& world, const Kind& kind, const std::string& folder) {
  const int models = sanitized ? 3 : kind.models / rounds;
  const bool threads = world.transport() == "threads", looks = !threads || world.rank() == 0;
  const auto make = [&](int count) {
    for (int k = 0; k < count; ++k) kind.model(world, folder);
    world.communicator().barrier("made").wait();
    const Footprint now = looks ? footprint() : Footprint{};
    world.communicator().barrier("seen").wait();
    return now;
  };
  (void)make(5);
  std::vector<Footprint> seen{make(5)};
  for (int round = 0; round < rounds; ++round) seen.push_back(make(models));
  const auto check = [&](const char* what, std::int64_t Footprint::*held, std::int64_t most) {
    check_growth(kind, models, what, seen, held, most);
  };
  check("bytes of shared memory", &Footprint::shared, 0);
  check("descriptors", &Footprint::descriptors, 0);
  check("threads", &Footprint::threads, 0);
  if (sanitized) return;
  check("mappings", &Footprint::mappings, models / 4);
  check("bytes mapped", &Footprint::mapped, models * gradient_bytes / 4);
  check("bytes of heap", &Footprint::heap, models * 48);
}

void check_processes(const std::string& transport) {
  const test::TemporaryFolder folder;
  const std::string rendezvous = "unix:" + folder / "rendezvous";
  test::check_all_well(test::run_processes(
      2,
      [&](int rank) {
        ::mallopt(M_ARENA_MAX, 1);
        test::set_rank_environment(rank, 2, rendezvous);
        World world = World::join({.transport = transport, .timeout = dist::Seconds(60)});
        for (const Kind& kind : kinds) check_constant(world, kind, folder / ".");
      },
      300));
}

}  // namespace

TEST_SUITE_BEGIN("not-cpu not-late");  // once is enough: they train for long

TEST_CASE("many models: one hook serves one model after another, of any size") {
  run_threads(2, {.timeout = dist::Seconds(60)}, [](World& world) {
    const auto hook = dist::compress(DType::bf16);
    for (const std::int64_t hidden : {8, 40, 40, 5}) {
      nn::Sequential model{nn::Linear(width, hidden), nn::ReLU(), nn::Linear(hidden, width)};
      optim::SGD optimizer(model.parameters(), {.lr = 0.01});
      dist::DistributedDataParallel ddp(model.parameters(), {}, world, {.hook = hook});
      train(model, ddp, optimizer, world);
      ddp.check_replicas();
    }
  });
}

TEST_CASE("many models: what processes over shared memory hold, stays constant") {
  check_processes("shm");
}
TEST_CASE("many models: what processes over tcp hold, stays constant") { check_processes("tcp"); }

TEST_CASE("many models: what ranks that are threads hold, stays constant") {
  const test::TemporaryFolder folder;
  run_threads(2, {.timeout = dist::Seconds(60)}, [&](World& world) {
    for (const Kind& kind : kinds) check_constant(world, kind, folder / ".");
  });
}

}  // namespace lockstep::many_models

TEST_SUITE_END();
