// The program of the fault drill: it trains a tiny model with DDP and saves a checkpoint. One of
// its ranks does a fault to itself at a given moment.
//
//   fault_victim FAULT MOMENT VICTIM TRANSPORT TIMEOUT FOLDER
//
// In FOLDER it writes `reached` just before the fault, `said.RANK` with what a rank throws, and
// `checkpoint`. While the victim waits inside the library, the fault comes from a call of the
// system that the library makes: this program has poll, nanosleep and fsync of its own.

#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "lockstep/dist/rendezvous/environment.h"
#include "lockstep/launch/report.h"
#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

std::string fault, moment, folder;
bool is_victim = false;
const char* armed = nullptr;  // the moment at which a call of the system becomes the fault

bool exists(const std::string& name) { return ::access((folder + "/" + name).c_str(), F_OK) == 0; }
void note(const std::string& name, const std::string& text = "") {
  std::ofstream(folder + "/" + name) << text;
}

/// Not by a call of the library, nor by one that this program replaces.
void await_file(const char* name) {
  while (!exists(name)) ::usleep(1000);
}

void commit_fault() {
  armed = nullptr;
  note("reached");
  const struct {
    const char* name;
    int signal;
  } signals[] = {{"SIGKILL", SIGKILL}, {"SIGSEGV", SIGSEGV}, {"SIGABRT", SIGABRT},
                 {"SIGTERM", SIGTERM}, {"SIGINT", SIGINT},   {"SIGHUP", SIGHUP},
                 {"SIGSTOP", SIGSTOP}};
  for (const auto& one : signals)
    if (fault == one.name) ::kill(::getpid(), one.signal);
  if (fault == "pause") await_file("continued");
  for (volatile bool for_ever = fault == "loop"; for_ever;) {
  }
  if (fault == "sleep") ::sleep(5);  // for longer than a timeout of a second, and some
  if (fault == "compute") {
    const Tensor x = Tensor::full({100}, 1.0);
    for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
         std::chrono::steady_clock::now() < end;)
      sum(x);
  }
  if (fault == "exit(0)") std::exit(0);
  if (fault == "exit(3)") std::exit(3);
  if (fault == "throw") throw std::runtime_error("an error of the drill");
  if (fault == "uncaught") std::thread([] { throw std::runtime_error("of the drill"); }).join();
}

void now_is(const std::string& when) {
  if (is_victim && moment == when) commit_fault();
}
void arm(const char* when) {
  if (is_victim && moment == when) armed = when;
}
/// In the place of a call of the system that waits.
void in_a_wait() {
  if (armed && (armed != std::string("saving") || exists("saving"))) commit_fault();
}

/// A layer that is computed once more in backward, when the buckets of those behind it are already
/// under way.
Tensor first_layer(nn::Sequential& layer, const Tensor& x, int step) {
  return checkpoint(
      [&layer, step](const Tensor& in) {
        if (recomputing() && step == 4) now_is("in a collective");
        if (recomputing() && step == 0) now_is("in the first collective");
        return layer(in);
      },
      x);
}

void train(const World& world) {
  manual_seed(1);
  nn::Sequential first{nn::Linear(16, 64), nn::ReLU()}, second{nn::Linear(64, 8)};
  std::vector<Parameter> parameters = first.parameters();
  for (const Parameter& p : second.parameters()) parameters.push_back(p);
  optim::SGD optimizer(parameters, {.lr = 0.01, .momentum = 0.9});
  // A bucket for each layer.
  dist::DistributedDataParallel ddp(parameters, {}, world,
                                    {.bucket_cap_mb = 0.001, .first_bucket_mb = 0.001});
  now_is("before the first step");
  for (int step = 0; step < 8; ++step) {
    const Tensor x = Tensor::full({4, 16}, 0.1 * (world.rank() + 1) + 0.01 * step);
    Tape tape;
    tape.backward(sum(second(first_layer(first, x, step))), Weight{4});
    optimizer.step();
    optimizer.zero_grad();
    if (step == 4) now_is("between steps");
  }
  if (world.rank() > 0) arm("saving");
  const auto save = [&] {
    arm("saving");
    nn::save_safetensors(folder + "/checkpoint", second.state_dict());
  };
  ddp.save_on_rank0(save);
  now_is("after the last collective");
}

}  // namespace

/// The system's function of that name.
template <class F>
static F* original(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}

extern "C" int poll(pollfd* entries, nfds_t count, int timeout) {
  in_a_wait();
  static auto* const real = original<int(pollfd*, nfds_t, int)>("poll");
  return real(entries, count, timeout);
}

extern "C" int nanosleep(const timespec* time, timespec* left) {
  in_a_wait();
  static auto* const real = original<int(const timespec*, timespec*)>("nanosleep");
  return real(time, left);
}

/// Rank 0 saves: the bytes are in the temporary file, which has not its name yet.
extern "C" int fsync(int descriptor) {
  if (moment == "saving" && !exists("saving")) {
    note("saving");
    if (armed) commit_fault();
    for (int k = 0; k < 20'000 && !exists("reached"); ++k) ::usleep(1000);
    ::usleep(50'000);
  }
  static auto* const real = original<int(int)>("fsync");
  return real(descriptor);
}

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return run_main([&] {
    check<UsageError>(arguments.size() == 6,
                      "[fault_victim] FAULT MOMENT VICTIM TRANSPORT TIMEOUT FOLDER, got {} words",
                      arguments.size());
    fault = arguments[0], moment = arguments[1], folder = arguments[5];
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    const int rank = dist::read_environment()->rank, victim = std::stoi(arguments[2]);
    is_victim = rank == victim;
    const dist::Seconds timeout(std::stod(arguments[4]));
    try {
      now_is("before joining");
      arm("joining");
      const World world = World::join(
          {.transport = arguments[3] == "auto" ? "" : arguments[3], .timeout = timeout});
      if (armed) commit_fault();  // it did not have to wait
      train(world);
      now_is("after the model");
    } catch (const std::exception& error) {
      note("said." + std::to_string(rank), error.what());
      throw;
    }
    now_is("at the end");
    return 0;
  });
}
