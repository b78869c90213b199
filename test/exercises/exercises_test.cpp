// The exercises: solutions are right, holes are noticed, wrong answers are told apart.

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <limits>
#include <stdexcept>

#include "exercises/solutions/batch_norm.h"
#include "exercises/solutions/buckets.h"
#include "exercises/solutions/mean.h"
#include "exercises/solutions/ready.h"
#include "exercises/solutions/ring.h"
#include "exercises/solutions/tape.h"
#include "lockstep/exercises/check/checks.h"
#include "support/program.h"
#include "support/temporary_folder.h"
#include "support/text.h"

namespace holes {
using namespace ::exercise;
#include "exercises/batch_norm.h"
#include "exercises/buckets.h"
#include "exercises/mean.h"
#include "exercises/ready.h"
#include "exercises/ring.h"
#include "exercises/tape.h"
}  // namespace holes

using namespace exercise;
using lockstep::test::contains;
using lockstep::test::TemporaryFolder;

namespace {

/// What a check says contains all of it.
void check_says(const std::string& said, const std::vector<std::string>& parts) {
  CAPTURE(said);
  for (const std::string& part : parts) CHECK(contains(said, part));
}

}  // namespace

TEST_CASE("exercises: the solutions are right") {
  CHECK(check_ring(ring) == "");
  CHECK(check_buckets(buckets) == "");
  CHECK(check_ready(launched_after) == "");
  CHECK(check_mean(seed, scale) == "");
  CHECK(check_batch_norm(merge) == "");
  CHECK(check_tape(backward) == "");
}

TEST_CASE("exercises: holes compile, and are not written yet") {
  CHECK(check_ring(holes::exercise::ring) == not_written);
  CHECK(check_buckets(holes::exercise::buckets) == not_written);
  CHECK(check_ready(holes::exercise::launched_after) == not_written);
  CHECK(check_mean(holes::exercise::seed, holes::exercise::scale) == not_written);
  CHECK(check_batch_norm(holes::exercise::merge) == not_written);
  CHECK(check_tape(holes::exercise::backward) == not_written);
}

TEST_CASE("exercises: slips in the ring, with world, rank and step") {
  using Change = std::function<void(std::vector<RingStep>&, int rank, int world)>;
  const auto said = [](const Change& change) {
    return check_ring([&](int rank, int world) {
      std::vector<RingStep> steps = ring(rank, world);
      change(steps, rank, world);
      return steps;
    });
  };
  check_says(said([](auto& steps, int, int world) {
               if (world == 4) steps.pop_back();
             }),
             {"world 4, rank 0: 5 steps; a ring takes 6"});
  check_says(said([](auto& steps, int rank, int world) {
               if (world == 3 && rank == 1) std::swap(steps[2].to, steps[2].from);
             }),
             {"world 3, rank 1, step 2", "its neighbours are 2 and 0"});
  check_says(said([](auto& steps, int rank, int world) {
               if (world == 3 && rank == 2) steps[1].send = (steps[1].send + 1) % 3;
             }),
             {"world 3, rank 2, step 1", "rank 0 expects part"});
  check_says(said([](auto& steps, int, int) {
               for (RingStep& step : steps) step.add = true;
             }),
             {"world 2, rank 0, step 1", "twice"});
  check_says(said([](auto& steps, int, int) {
               for (RingStep& step : steps) step.add = false;
             }),
             {"at the end rank 0's part", "lacks what rank"});
  check_says(said([](auto& steps, int, int world) {
               for (RingStep& step : steps)
                 if (world == 2) step.send = step.receive = 2;
             }),
             {"world 2, rank 0, step 0", "there are 0..1"});
}

TEST_CASE("exercises: slips in buckets and in when they are launched") {
  check_says(check_buckets([](const std::vector<long>& bytes, long cap) {
               return buckets(bytes, cap - 1);  // "at most", not "less than"
             }),
             {"cap 100: bucket"});
  check_says(check_buckets([](const std::vector<long>& bytes, long) {
               std::vector<std::vector<int>> each;
               for (std::size_t i = 0; i < bytes.size(); ++i) each.push_back({static_cast<int>(i)});
               return each;
             }),
             {"cap 100: bucket 0 is [0, 1"});
  check_says(check_buckets([](const std::vector<long>& bytes, long cap) {
               auto all = buckets(bytes, cap);
               if (all.size() > 2) all.pop_back();
               return all;
             }),
             {"is missing"});
  using Buckets = std::vector<std::vector<int>>;
  check_says(check_ready([](const Buckets& all, const std::vector<int>& writes) {
               auto times = launched_after(all, writes);
               for (std::size_t k = 0; k < times.size(); ++k)  // each on its own
                 times[k] = launched_after({all[k]}, writes)[0];
               return times;
             }),
             {"is launched after"});
  check_says(check_ready([](const Buckets& all, std::vector<int> writes) {
               std::vector<int> first;  // after the first write of a parameter, not the last
               for (int& p : writes) {
                 if (std::ranges::find(first, p) != first.end()) p = -1;
                 first.push_back(p);
               }
               return launched_after(all, writes);
             }),
             {"is launched after"});
  check_says(check_ready([](const Buckets& all, const std::vector<int>& writes) {
               auto times = launched_after(all, writes);
               if (times.size() == 3) times.pop_back();
               return times;
             }),
             {"2 answers for 3 buckets"});
}

TEST_CASE("exercises: slips in the mean, in the statistics and on the tape") {
  check_says(check_mean([](double, std::optional<double>) { return 1.0; }, scale),
             {"has no rows, and seeds 1"});
  check_says(check_mean([](double w, std::optional<double>) { return w; }, scale),
             {"the total is known: the mean is"});
  check_says(check_mean(seed,
                        [](const std::vector<double>& all, bool known) {  // the mean over ranks
                          const double right = scale(all, known);
                          const bool wrong = !known && right != 0;
                          return wrong ? 1.0 / static_cast<double>(all.size()) : right;
                        }),
             {"the total is not known: the mean is"});
  check_says(check_batch_norm([](const std::vector<Statistics>& ranks) {
               Statistics all;  // by E(x^2) - E(x)^2
               double squares = 0;
               for (const Statistics& r : ranks) {
                 all.count += r.count;
                 all.mean += r.count * r.mean;
                 squares += r.m2 + r.count * r.mean * r.mean;
               }
               if (all.count > 0) all.mean /= all.count;
               all.m2 = squares - all.count * all.mean * all.mean;
               return all;
             }),
             {"near 1000000: the M2"});
  check_says(check_batch_norm([](const std::vector<Statistics>& ranks) {
               Statistics all = merge(ranks);
               all.m2 = 0;
               for (const Statistics& rank : ranks) all.m2 += rank.m2;
               return all;
             }),
             {"the M2 is"});
  check_says(check_batch_norm([](const std::vector<Statistics>& ranks) {
               Statistics all = merge(ranks);
               if (!ranks.empty()) all.mean = ranks[0].mean;
               return all;
             }),
             {"the mean is"});
  check_says(check_tape([](const std::vector<Node>& nodes) {
               std::vector<double> gradient(nodes.size());
               gradient.back() = 1;
               for (std::size_t i = nodes.size(); i-- > 0;) {  // assigns, does not add
                 if (nodes[i].kind == Node::Kind::input) continue;
                 gradient[static_cast<std::size_t>(nodes[i].a)] = gradient[i];
                 gradient[static_cast<std::size_t>(nodes[i].b)] = gradient[i];
               }
               return gradient;
             }),
             {"node ", "has gradient"});
  check_says(check_tape([](const std::vector<Node>& nodes) {
               auto gradient = backward(nodes);
               if (nodes.size() > 4) gradient.pop_back();
               return gradient;
             }),
             {"gradients for"});
  check_says(check_tape([](const std::vector<Node>& nodes) {
               auto gradient = backward(nodes);
               for (double& g : gradient) g *= 2;
               return gradient;
             }),
             {"has gradient 1, yours gives 2"});
}

TEST_CASE("exercises: what is infinite or NaN is not near anything") {
  for (const double wrong :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    check_says(check_tape([&](const std::vector<Node>& nodes) {
                 return std::vector<double>(nodes.size(), wrong);
               }),
               {"yours gives"});
    check_says(check_mean(seed,
                          [&](const std::vector<double>& all, bool known) {
                            const double right = scale(all, known);
                            return known || right == 0 ? right : wrong;
                          }),
               {"yours gives"});
    check_says(check_batch_norm([&](const std::vector<Statistics>& ranks) {
                 Statistics all = merge(ranks);
                 if (all.count > 0) all.mean = wrong;
                 return all;
               }),
               {"the mean is", "yours gives"});
  }
}

TEST_CASE("exercises: the programs, of the solution and of the reader's file") {
  const auto says = [](const std::string& program, int code, const std::string& line) {
    const lockstep::test::Ended ended = lockstep::test::run({LOCKSTEP_BIN_DIR "/" + program});
    CHECK(ended.code == code);
    CHECK(ended.out == line);
    CHECK(ended.err == "");
  };
  says("check_solution_ring", 0, "ring: right\n");
  says("check_solution_tape", 0, "tape: right\n");
  if (check_ring(holes::exercise::ring) == not_written)  // here nobody has solved it
    says("check_ring", 1, "ring: not written yet: fill the hole in exercises/ring.h\n");
}

TEST_CASE("exercises: an answer that throws, and one that does not end") {
  const auto told = [](const std::function<std::string()>& answer) {
    const TemporaryFolder folder;
    std::fflush(stdout);
    const pid_t pid = ::fork();
    if (pid == 0) {
      const bool opened = std::freopen((folder / "out").c_str(), "w", stdout) != nullptr;
      const int code = tell("it", answer);
      std::fflush(stdout);
      ::_exit(opened ? code : 99);
    }
    int status = 0;
    ::waitpid(pid, &status, 0);
    std::ifstream lines(folder / "out");
    std::string line, more;
    std::getline(lines, line);
    CHECK_FALSE(std::getline(lines, more));
    return fmt::format("{} {}", WIFEXITED(status) ? WEXITSTATUS(status) : -1, line);
  };
  CHECK(told([] { return ""; }) == "0 it: right");
  CHECK(told([]() -> std::string { throw std::out_of_range("at"); }) == "1 it: it throws: at");
  // Each check, with an answer that is right until `slip` is called in a world that is not the
  // first: the line begins with the case.
  const auto slip_in_each = [&](void (*slip)(), const std::string& says) {
    const auto check_told = [&](const std::function<std::string()>& answer, const char* about) {
      const std::string line = told(answer);
      CAPTURE(line);
      CHECK(line.starts_with(fmt::format("1 it: {}", about)));
      CHECK(line.ends_with(": " + says));
    };
    check_told(
        [=] {
          return check_ring([=](int rank, int world) {
            if (world == 3 && rank == 1) slip();
            return ring(rank, world);
          });
        },
        "world 3, rank 1: ");
    check_told(
        [=] {
          return check_buckets([=](const std::vector<long>& bytes, long cap) {
            if (bytes.size() == 3) slip();
            return buckets(bytes, cap);
          });
        },
        "sizes [");
    check_told(
        [=] {
          return check_ready([=](const auto& all, const std::vector<int>& writes) {
            if (all.size() == 3) slip();
            return launched_after(all, writes);
          });
        },
        "buckets [[");
    check_told(
        [=] {
          return check_mean(seed, [=](const std::vector<double>& weights, bool known) {
            if (weights.size() == 3) slip();
            return scale(weights, known);
          });
        },
        "world 3, weights [0, 0, 0], the total is known: ");
    check_told(
        [=] {
          return check_batch_norm([=](const std::vector<Statistics>& ranks) {
            if (ranks.size() == 3) slip();
            return merge(ranks);
          });
        },
        "world 3, rows [0, 0, 0] with values near 0: ");
    check_told(
        [=] {
          return check_tape([=](const std::vector<Node>& nodes) {
            if (nodes.size() == 5) slip();
            return backward(nodes);
          });
        },
        "nodes [");
  };
  slip_in_each([] { throw std::out_of_range("at"); }, "it throws: at");
  slip_in_each([] { throw 1; }, "it throws: an error of no known kind");
  slip_in_each([] { ::raise(SIGALRM); }, "no end after 10 s: a loop without one?");  // as then
}
