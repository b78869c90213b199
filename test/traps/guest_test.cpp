// The library is a guest in its process: what the program has set, and what it shares with all of
// the process, is after a training as it was before.

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cfenv>
#include <clocale>
#include <exception>
#include <filesystem>
#include <fstream>
#include <locale>
#include <new>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "lockstep/dist/transport/backoff.h"
#include "lockstep/lockstep.h"
#include "support/temporary_folder.h"
#include "support/text.h"

// Null in a build without OpenMP.
extern "C" __attribute__((weak)) int omp_get_max_threads();
extern "C" __attribute__((weak)) void omp_set_num_threads(int);

namespace lockstep {
namespace {

/// Everything that the threads of a process have in common, or that one of them has set for itself,
/// a line for each.
std::vector<std::string> surroundings() {
  std::vector<std::string> all;
  const auto add = [&](std::string_view name, const auto& value) {
    all.push_back(fmt::format("{} {}", name, value));
  };
  if (omp_get_max_threads) add("OpenMP threads", omp_get_max_threads());
  add("rounding", std::fegetround());
  std::fenv_t floats;
  std::fegetenv(&floats);
  std::feclearexcept(FE_ALL_EXCEPT);
  std::fenv_t modes;
  std::fegetenv(&modes);
#if defined(__x86_64__)
  add("floating point", fmt::format("{:x} {:x}", modes.__control_word, modes.__mxcsr));
#endif
  add("locale", std::setlocale(LC_ALL, nullptr));
  add("C++ locale", std::locale().name());
  const mode_t mask = ::umask(0);
  ::umask(mask);
  add("umask", mask);
  add("folder", std::filesystem::current_path().string());
  for (char** entry = environ; *entry; ++entry) add("environment", *entry);
  for (int number = 1; number < SIGRTMAX; ++number) {
    struct sigaction action {};
    if (::sigaction(number, nullptr, &action) == 0)
      add(fmt::format("signal {}", number), reinterpret_cast<std::uintptr_t>(action.sa_handler));
  }
  sigset_t blocked;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  for (int number = 1; number < SIGRTMAX; ++number)
    if (sigismember(&blocked, number) == 1) add("blocked", number);
  for (int resource = 0; resource < RLIM_NLIMITS; ++resource) {
    struct rlimit limit {};
    ::getrlimit(static_cast<__rlimit_resource>(resource), &limit);
    add(fmt::format("limit {}", resource), fmt::format("{} {}", limit.rlim_cur, limit.rlim_max));
  }
  add("terminate", reinterpret_cast<std::uintptr_t>(std::get_terminate()));
  add("new", reinterpret_cast<std::uintptr_t>(std::get_new_handler()));
  add("timer slack", ::prctl(PR_GET_TIMERSLACK, 0UL, 0UL, 0UL, 0UL));
  add("dies with parent", [] {
    int number = 0;
    ::prctl(PR_GET_PDEATHSIG, &number);
    return number;
  }());
  add("dumpable", ::prctl(PR_GET_DUMPABLE, 0UL, 0UL, 0UL, 0UL));
  add("priority", ::getpriority(PRIO_PROCESS, 0));
  return all;
}

/// The lines that are not the same, of both.
std::string changes(const std::vector<std::string>& before, const std::vector<std::string>& after) {
  std::string text;
  for (const auto& [some, others, sign] :
       {std::tuple(&before, &after, "-"), {&after, &before, "+"}})
    for (const std::string& line : *some)
      if (std::ranges::count(*others, line) == 0) text += fmt::format("{} {}\n", sign, line);
  return text;
}

void train(World& world, const std::string& file) {
  nn::Sequential model{nn::Linear(256, 256), nn::ReLU(), nn::Linear(256, 256)};
  optim::Adam optimizer(model.parameters(), {.lr = 0.1});
  dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
  for (int step = 0; step < 2; ++step) {
    Tape tape;
    tape.backward(mean(model(Tensor::full({256, 256}, 1))));
    optimizer.step();
    optimizer.zero_grad();
  }
  nn::Checkpoint checkpoint(ddp);
  checkpoint.add("model", model);
  checkpoint.save(file, {.async = true});
  checkpoint.wait();
}

TEST_CASE("guest: a training leaves the process as it was") {
  const test::TemporaryFolder folder;
  const int threads = omp_get_max_threads ? omp_get_max_threads() : 1;
  if (omp_set_num_threads) omp_set_num_threads(4);
  World alone = World::join();  // sets the handler of std::terminate once: failure_record.h
  const std::vector<std::string> before = surroundings();
  train(alone, folder / "alone");
  CHECK(changes(before, surroundings()) == "");
  std::vector<std::vector<std::string>> of_ranks(4);
  run_threads(2, {}, [&](World& world) {
    if (omp_set_num_threads) omp_set_num_threads(3);
    const auto rank = static_cast<std::size_t>(world.rank());
    of_ranks[2 * rank] = surroundings();
    train(world, folder / "two");
    of_ranks[2 * rank + 1] = surroundings();
  });
  CHECK(changes(of_ranks[0], of_ranks[1]) == "");
  CHECK(changes(of_ranks[2], of_ranks[3]) == "");
  CHECK(changes(before, surroundings()) == "");
  if (omp_set_num_threads) omp_set_num_threads(threads);
}

TEST_CASE("guest: products, and those that fail, leave OpenMP's threads as they were") {
  if (!omp_set_num_threads) return;
  const int threads = omp_get_max_threads();
  for (const int wanted : {1, 2, 5})
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      omp_set_num_threads(wanted);
      const Tensor a = Tensor::full({256, 256}, 1, dtype);
      CHECK(matmul(a, a).shape() == a.shape());
      CHECK(omp_get_max_threads() == wanted);
      CHECK_THROWS(matmul(a, Tensor::full({3, 8}, 1, dtype)));
      CHECK(omp_get_max_threads() == wanted);
    }
  omp_set_num_threads(threads);
}

TEST_CASE("guest: who waits for a rank sleeps exactly, and later as the program wants") {
  std::thread([] {
    ::prctl(PR_SET_TIMERSLACK, 123456UL, 0UL, 0UL, 0UL);
    const dist::Backoff backoff(1 << 20);
    unsigned round = 0;
    while (!backoff.relax(round)) ++round;  // until it has slept
    CHECK(::prctl(PR_GET_TIMERSLACK, 0UL, 0UL, 0UL, 0UL) == 123456);
  }).join();
}

/// The masks of blocked signals of this process's threads, but for this one.
std::vector<std::uint64_t> masks_of_others() {
  std::vector<std::uint64_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    if (entry.path().filename() == std::to_string(::gettid())) continue;
    std::ifstream status(entry.path() / "status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("SigBlk:")) found.push_back(std::stoull(line.substr(7), nullptr, 16));
  }
  return found;
}

TEST_CASE("guest: a thread that writes a checkpoint takes no signal of the program's") {
  const test::TemporaryFolder folder;
  World world = World::join();
  nn::Linear model(2048, 2048);
  dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
  nn::Checkpoint checkpoint(ddp);
  checkpoint.add("model", model);
  std::vector<std::uint64_t> masks;
  const std::size_t others = masks_of_others().size();
  for (int attempt = 0; attempt < 20 && masks.size() <= others; ++attempt) {
    checkpoint.save(folder / "file", {.async = true});
    masks = masks_of_others();
    checkpoint.wait();
  }
  REQUIRE(masks.size() > others);
  for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGALRM, SIGCHLD})
    CHECK(std::ranges::count_if(
              masks, [&](std::uint64_t mask) { return (mask >> (number - 1) & 1) != 0; }) > 0);
}

}  // namespace
}  // namespace lockstep
