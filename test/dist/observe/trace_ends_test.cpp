// How a Trace ends: after its world, on another thread, in another working directory, with an
// error; and what then lies in its folder.

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "lockstep/core/trace/recorder.h"
#include "lockstep/dist/observe/trace.h"
#include "lockstep/lockstep.h"
#include "lockstep/tools/trace/trace_file.h"
#include "support/temporary_folder.h"
#include "support/text.h"

using namespace lockstep;
using lockstep::test::TemporaryFolder;
using traces::RankTrace;

namespace {

namespace fs = std::filesystem;

std::int64_t count_of(const RankTrace& trace, const std::string& name) {
  return std::ranges::count(trace.events, name, &traces::Event::name);
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.insert(entry.path().filename().string());
  return names;
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("trace: it may outlive the World that it was made of") {
  const TemporaryFolder folder;
  run_threads(2, {}, [&](World& world) {
    std::optional<World> part = world.split(0);
    std::optional<dist::Trace> trace(std::in_place, *part, folder / "t");
    part.reset();
    (void)relu(Tensor::zeros({3}));
    trace.reset();
  });
  const auto read = traces::read_traces(folder / "t");
  REQUIRE(read.size() == 2);
  for (const RankTrace& trace : read) CHECK(count_of(trace, "relu") == 1);
}

TEST_CASE("trace: one that ends on another thread is refused, and its thread goes on") {
  const TemporaryFolder folder;
  run_threads(1, {}, [&](World& world) {
    auto trace = std::make_unique<dist::Trace>(world, folder / "t");
    std::thread([&] {
      CHECK_THROWS_WITH_AS(trace->write(), doctest::Contains("must end on the thread that made it"),
                           StateError);
      trace.reset();  // says the same on stderr
    }).join();
    (void)relu(Tensor::zeros({3}));
    CHECK_THROWS_AS(dist::Trace(world, folder / "t"), StateError);  // this thread's has not ended
  });
  CHECK(names_in(folder / "t").empty());
}

TEST_CASE("trace: a relative folder stays where it was when the program goes elsewhere") {
  const TemporaryFolder folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  {
    const World world = World::join();
    const dist::Trace trace(world, "t");
    fs::current_path("/");
  }
  fs::current_path(before);
  CHECK(traces::read_traces(folder / "t").size() == 1);
}

TEST_CASE("trace: an earlier run's files stay until new ones are complete; others stay at all") {
  const TemporaryFolder folder;
  for (const char* name : {"rank-0.json", "rank-1.json", "rank-7.json", "rank-seven.json"})
    std::ofstream(folder / name) << "old";
  const auto old = names_in(folder.path());
  run_threads(2, {}, [&](World& world) {
    const dist::Trace trace(world, folder / "");
    world.communicator().barrier("looked").wait();
    if (world.rank() == 0) {
      CHECK(names_in(folder.path()) == old);
      for (const std::string& name : old) CHECK(text_of(folder / name) == "old");
    }
    world.communicator().barrier("seen").wait();
  });
  CHECK(names_in(folder.path()) ==
        std::set<std::string>{"rank-0.json", "rank-1.json", "rank-seven.json"});
  CHECK(traces::read_traces(folder / "").size() == 2);
}

TEST_CASE("trace: of two runs in a folder the later one is read") {
  const TemporaryFolder folder, other;
  const auto traced = [](const TemporaryFolder& to) {
    run_threads(2, {}, [&](World& world) { const dist::Trace trace(world, to / ""); });
  };
  traced(folder);
  traced(other);
  fs::copy_file(other / "rank-1.json", folder / "rank-1.json",  // as if rank 0 had been killed
                fs::copy_options::overwrite_existing);
  CHECK(traces::missing_ranks(traces::read_traces(folder / "")) == "rank 0");
  traced(folder);
  CHECK(traces::read_traces(folder / "").size() == 2);
}

TEST_CASE("trace: an error of write() that nobody catches leaves no temporary file") {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    const World world = World::join();
    std::set_terminate([] { ::_exit(7); });
    auto* trace = new dist::Trace(world, folder / "");
    for (int i = 0; i < 100; ++i) (void)relu(Tensor::zeros({3}));
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit little{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &little);
    [&]() noexcept { trace->write(); }();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WEXITSTATUS(status) == 7);
  CHECK(folder.empty());
}

TEST_CASE("trace: exposed time of layers' collectives is in that of the world's communicator") {
  for (const bool linked_first : {false, true}) {
    CAPTURE(linked_first);
    run_threads(2, {}, [&](World& world) {
      dist::Communicator& all = world.communicator();
      if (linked_first) (void)world.layer_communicator();
      const dist::Seconds before = all.exposed();
      world.layer_communicator().barrier("of a layer").wait();
      const double exposed = (all.exposed() - before).count();
      const double of_layers = world.layer_communicator().exposed().count();
      CHECK(of_layers > 0);
      if (linked_first)
        CHECK(exposed == doctest::Approx(of_layers));
      else  // with the barrier in which ranks meet before they connect
        CHECK(exposed > 0.999 * of_layers);
    });
  }
}

TEST_CASE("trace: communicators beyond the 255th have no track, and what is on none is counted") {
  std::int64_t now = 0;
  trace::Recorder recorder([&] { return ++now; }, 10'000);
  constexpr std::size_t many = 300, most = 255;
  const std::vector<int> communicators(many);
  for (int round = 0; round < 2; ++round)
    for (const int& one : communicators)
      for (const auto kind : {trace::Kind::step, trace::Kind::collective})
        recorder.add({.kind = kind, .communicator = recorder.number_of(&one)});
  CHECK(recorder.size() == 2 * 2 * most);
  CHECK(recorder.dropped() == 2 * 2 * (many - most));
  std::map<int, int> events;
  for (const auto& chunk : recorder.events())
    for (const trace::Event& event : chunk) ++events[event.communicator];
  CHECK(events.size() == most);
  for (const auto& [track, its] : events) CHECK(its == 4);  // of one communicator alone
}
