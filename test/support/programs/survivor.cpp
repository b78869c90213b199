// A training whose job may lose ranks, and which does one thing that does not go together with
// that, or leaves out one that it needs.
//
//   survivor DEED
//
// In the third step rank 1, as the launcher counts, kills itself, if nobody has done so before.
//
//   survivor RANK:WHAT@WHEN,... FILE
//
// Or ranks do something once, by the numbers of the launcher: loop, stop (SIGSTOP), kill, leave
// (exit(0)) or sleep (for longer than the timeout, of 2 s), in a step, in a save of the checkpoint
// FILE, when its bytes are written, or at the end: after the last collective, before the end of the
// World. RANK:join@step: the training does not end before that rank has joined. Who is left first
// prints the model's digest and the ranks.

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/launch/report.h"
#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

data::TensorDataset samples() {
  manual_seed(5);
  const Tensor x = Tensor::randn({64, 6}), y = Tensor::empty({64}, DType::i64);
  for (std::int64_t i = 0; i < 64; ++i) y.data<std::int64_t>()[i] = i * i % 4;
  return data::TensorDataset({{"x", x}, {"y", y}});
}

/// "1:loop@step,2:kill@step".
std::string plan, awaited, file;  // awaited: the plan of the beginning
int number = -1;                  // of this rank, as the launcher counts

void do_planned(const std::string& when) {
  const std::string key = fmt::format(",{}:", number);
  const std::string all = "," + plan + ",";
  for (std::size_t at = 0; (at = all.find(key, at)) != all.npos; at += key.size()) {
    const std::string deed = all.substr(at + key.size(), all.find(',', at + 1) - at - key.size());
    if (!deed.ends_with("@" + when)) continue;
    const std::string what = deed.substr(0, deed.find('@'));
    plan.clear();  // once
    if (what == "stop") ::raise(SIGSTOP);
    if (what == "kill") ::raise(SIGKILL);
    if (what == "leave") std::exit(0);
    if (what == "sleep") ::sleep(5);
    for (volatile bool for_ever = what == "loop"; for_ever;) {
    }
    return;
  }
}

/// Whether a rank that is awaited is still to join.
bool is_awaited(const World& world) {
  const std::size_t end = file.empty() ? std::string::npos : awaited.find(":join");
  return end != awaited.npos &&
         std::ranges::count(world.members(),
                            std::stoi(awaited.substr(awaited.rfind(',', end) + 1))) == 0;
}

int number_of(const World& world) { return world.members()[dist::index(world.rank())]; }

/// What the program's body does at its beginning, under DDP.
void do_deed(const std::string& deed, const World& world, optim::Optimizer& optimizer,
             dist::DistributedDataParallel& ddp) {
  if (deed == "shard") optimizer.shard(ddp);
  if (deed == "trace") const dist::Trace trace(world, "/nowhere");
  if (deed == "hash-trace") const dist::HashTrace trace(world, "/nowhere/trace");
  if (deed == "async-checkpoint") nn::Checkpoint(ddp).save("/nowhere/file", {.async = true});
}

void run(const std::string& deed) {
  const dist::Seconds timeout(plan.empty() ? 20 : 2);
  World world = World::join({.comm = deed == "mpi" ? "mpi" : "auto", .timeout = timeout});
  number = number_of(world);
  const data::TensorDataset train = samples();
  manual_seed(0);
  nn::Sequential model{nn::Linear(6, 8), nn::BatchNorm(8), nn::ReLU(), nn::Linear(8, 4)};
  const std::vector<Parameter> p = model.parameters();
  optim::Adam optimizer(p, {.lr = 0.01});
  std::int64_t epoch = 0, position = 0, step = 0;
  nn::Checkpoint shared;
  shared.add("model", model);
  shared.add("optimizer", optimizer);
  shared.add("epoch", epoch);
  shared.add("position", position);
  shared.add("step", step);
  std::optional<dist::DistributedDataParallel> outer;
  if (deed == "ddp-outside") outer.emplace(p, model.buffers(), world);
  if (deed == "sync-outside") nn::convert_sync_batchnorm(model, world);
  const auto body = [&](World& now) {
    optimizer.zero_grad();
    if (deed != "no-share") shared.share(now, deed == "no-progress" ? 0 : step);
    if (deed != "sync-outside") nn::convert_sync_batchnorm(model, now);
    dist::DdpOptions options;
    if (deed == "hook") options.hook = dist::compress(DType::bf16);
    if (deed == "ddp-kept") outer.emplace(p, model.buffers(), now, options);
    std::optional<dist::DistributedDataParallel> own;
    if (!outer) own.emplace(p, model.buffers(), now, options);
    do_deed(deed, now, optimizer, outer ? *outer : *own);
    for (; epoch < 10 || is_awaited(now); ++epoch, position = 0)
      for (const data::Batch& batch : data::Loader(
               train, {.batch = 16, .begin = position, .lanes = 4}, now, static_cast<int>(epoch))) {
        if (step == 2 && number_of(now) == 1 && file.empty()) ::raise(SIGKILL);
        if (step == 2) do_planned("step");
        Tape tape;
        tape.backward(nn::cross_entropy(model(batch.x), batch.y), batch.weight);
        optimizer.step();
        optimizer.zero_grad();
        const bool wrong = step == 5 && number_of(now) == 3;
        if (deed == "wrong" && wrong) p[0].value().data<float>()[0] += 1;
        position = batch.position;
        ++step;
        const bool forgets = deed == "no-mark" || (deed == "one-no-mark" && number_of(now) == 2);
        if (!forgets) shared.mark();
        if (!file.empty() && step % 4 == 0) {
          nn::Checkpoint saved(*own);
          saved.add("model", model);
          saved.save(file);
        }
      }
  };
  if (deed == "not-called") return body(world);
  survive(world, body);
  if (file.empty()) return;
  if (world.rank() == 0)
    fmt::print("{} of {}\n", parameter_digest(p), fmt::join(world.members(), " "));
  std::fflush(stdout);
  do_planned("end");
}

}  // namespace

/// The bytes of a checkpoint are in its file, which has not its name yet.
extern "C" int fsync(int descriptor) {
  do_planned("save");
  static auto* const real = reinterpret_cast<int (*)(int)>(::dlsym(RTLD_NEXT, "fsync"));
  return real(descriptor);
}

int main(int argc, char** argv) {
  return run_main([&] {
    check<UsageError>(argc == 2 || argc == 3, "survivor DEED, or survivor PLAN FILE");
    if (argc == 3) plan = awaited = argv[1], file = argv[2];
    run(argc == 3 ? "" : argv[1]);
    return 0;
  });
}
