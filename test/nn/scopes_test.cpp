// Scopes of a thread, of every kind: they end in any order, or a second one is refused at once.

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/checkpoint.h"
#include "lockstep/autograd/lanes/lane_record.h"
#include "lockstep/autograd/rerun.h"
#include "lockstep/autograd/tape.h"
#include "lockstep/core/gpu/stream.h"
#include "lockstep/core/lanes.h"
#include "lockstep/kernels/matmul.h"
#include "lockstep/nn/optim/ema.h"
#include "support/device.h"
#include "support/text.h"

using namespace lockstep;

namespace {

using Scope = std::shared_ptr<void>;

struct ScopeKind {
  std::string name;
  std::function<Scope(int)> make;            // the i-th of three
  std::function<std::string(int)> expected;  // while the i-th is the newest; -1: there is none
  std::function<std::string()> now;
};

template <class T>
std::string address(const T* pointer) {
  return fmt::format("{}", static_cast<const void*>(pointer));
}

std::vector<ScopeKind> kinds() {
  static std::vector<Tape*> tapes(3);
  static const std::vector<DType> dtypes = {DType::bf16, DType::f16, DType::bf16};
  static std::vector<std::shared_ptr<const Lanes>> lanes;
  static std::vector<LaneRecord> records;
  static std::vector<Stream> streams;
  if (lanes.empty())
    for (int i = 0; i < 3; ++i) {
      lanes.push_back(std::make_shared<const Lanes>(8, 2, Shard{}));
      records.emplace_back(std::vector<Parameter>{});
      streams.push_back(Stream::create(test::test_device()));
    }
  const auto of = [](int i, const auto& all, const auto& otherwise) {
    return i < 0 ? otherwise : all[static_cast<std::size_t>(i)];
  };
  static const Stream own = Stream::current(test::test_device());
  const auto yes = [](int i) { return std::string(i < 0 ? "no" : "yes"); };
  return {
      {"Tape",
       [](int i) {
         const auto tape = std::make_shared<Tape>();
         tapes[static_cast<std::size_t>(i)] = tape.get();
         return Scope(tape);
       },
       [of](int i) { return address(of(i, tapes, static_cast<Tape*>(nullptr))); },
       [] { return address(Tape::current()); }},
      {"Autocast",
       [of](int i) { return Scope(std::make_shared<Autocast>(of(i, dtypes, DType::f32))); },
       [of](int i) { return std::string(name_of(of(i, dtypes, DType::f32))); },
       [] { return std::string(name_of(Autocast::current())); }},
      {"LaneScope",
       [of](int i) { return Scope(std::make_shared<LaneScope>(of(i, lanes, lanes[0]))); },
       [of](int i) { return address(of(i, lanes, std::shared_ptr<const Lanes>()).get()); },
       [] { return address(current_lanes().get()); }},
      {"LaneRecord::Scope",
       [](int i) {
         return Scope(std::make_shared<LaneRecord::Scope>(records[static_cast<std::size_t>(i)]));
       },
       [](int i) { return address(i < 0 ? nullptr : &records[static_cast<std::size_t>(i)]); },
       [] { return address(LaneRecord::current()); }},
      {"ChainProducts", [](int) { return Scope(std::make_shared<kernels::ChainProducts>()); }, yes,
       [] { return std::string(kernels::ChainProducts::on() ? "yes" : "no"); }},
      {"Rerun", [](int) { return Scope(std::make_shared<Rerun>(Surroundings{})); }, yes,
       [] { return std::string(recomputing() ? "yes" : "no"); }},
      {"StreamGuard",
       [of](int i) { return Scope(std::make_shared<StreamGuard>(of(i, streams, own))); },
       [of](int i) { return address(of(i, streams, own).native()); },
       [] { return address(Stream::current(test::test_device()).native()); }},
  };
}

/// What a child prints that makes a scope here and ends it on another thread; empty if it lives.
std::string ended_elsewhere(const ScopeKind& kind) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    (void)::dup2(ends[1], 2);
    (void)::signal(SIGABRT, SIG_DFL);
    Scope scope = kind.make(0);
    std::thread([&] { scope.reset(); }).join();
    ::_exit(0);
  }
  (void)::close(ends[1]);
  std::string text;
  char buffer[256];
  for (ssize_t n; (n = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(n));
  (void)::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? "" : text;
}

}  // namespace

TEST_CASE("scopes: three of a kind end in any order") {
  for (const ScopeKind& kind : kinds()) {
    CAPTURE(kind.name);
    REQUIRE(kind.now() == kind.expected(-1));
    std::vector<int> order = {0, 1, 2};
    do {
      std::vector<Scope> scopes;
      for (int i = 0; i < 3; ++i) {
        scopes.push_back(kind.make(i));
        CHECK(kind.now() == kind.expected(i));
      }
      for (const int i : order) {
        scopes[static_cast<std::size_t>(i)].reset();
        int newest = 2;
        while (newest >= 0 && !scopes[static_cast<std::size_t>(newest)]) --newest;
        CHECK(kind.now() == kind.expected(newest));
      }
    } while (std::ranges::next_permutation(order).found);
  }
}

TEST_CASE("scopes: one that ends on another thread ends the program, with its name") {
  for (const ScopeKind& kind : kinds()) {
    if (kind.name == "StreamGuard" && !test::on_cpu()) continue;  // a GPU survives no fork
    CAPTURE(kind.name);
    const std::string name = kind.name == "Rerun" ? "Autocast" : kind.name;  // which it has
    CHECK(test::contains(ended_elsewhere(kind),
                         "[" + name + "] it must end on the thread that made it"));
  }
}

TEST_CASE("scopes: the random state of before the first rerun comes back with the last one's end") {
  const auto draw = [] { return Tensor::rand({1}).item(); };
  manual_seed(3);
  const Surroundings before;
  const double next = draw();
  before.restore();
  auto first = std::make_unique<Rerun>(Surroundings{});
  (void)draw();
  auto second = std::make_unique<Rerun>(Surroundings{});
  (void)draw();
  first.reset();
  (void)draw();
  second.reset();
  CHECK(draw() == next);
}

TEST_CASE("scopes: what exchanges values is refused twice for a parameter, and else ends freely") {
  const Parameter a(Tensor::ones({1}), "a"), b(Tensor::full({1}, 2), "b");
  optim::Ema first({a}, 0.5), second({b}, 0.5), both({a, b}, 0.5);
  a.value().fill(10);
  b.value().fill(20);
  const auto apply_both = [&] { const optim::Ema::Applied applied(both); };
  auto one = std::make_unique<optim::Ema::Applied>(first);
  auto two = std::make_unique<optim::Ema::Applied>(second);
  CHECK_THROWS_WITH_AS(apply_both(), doctest::Contains("another Ema's average"), StateError);
  one.reset();
  CHECK(a.value().item() == 10);
  CHECK(b.value().item() == 2);
  CHECK_THROWS_WITH_AS(apply_both(), doctest::Contains("'b' holds another Ema's"), StateError);
  two.reset();
  CHECK(b.value().item() == 20);
  apply_both();
  CHECK(a.value().item() == 10);

  a.gradient_slot().fill(3);
  b.gradient_slot().fill(4);
  auto here = std::make_unique<LaneRecord::OtherGradients>(std::vector{a});
  auto there = std::make_unique<LaneRecord::OtherGradients>(std::vector{b});
  CHECK_THROWS_WITH_AS(LaneRecord::OtherGradients(std::vector{b}),
                       "[aside] the gradient of 'b' is put aside already", StateError);
  here.reset();
  there.reset();
  CHECK(a.gradient_slot().item() == 3);
  CHECK(b.gradient_slot().item() == 4);
}
