// Joins its world and says so: `rank 1 of 2`. Then, as its arguments say:
//
//   joined split        a group of all ranks meets
//   joined child WORDS  runs a command line, and ends with its code
//   joined lines        says each line of its stdin

#include <fmt/format.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "lockstep/launch/report.h"
#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

void sum(const World& world) {
  const Tensor data = Tensor::full({10}, 1);
  world.communicator().all_reduce(data, "sum").wait();
  check<StateError>(data.data<float>()[9] == static_cast<float>(world.size()), "a wrong sum");
}

void say(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

int run(const std::string& what, const std::string& command) {
  World world = World::join({.timeout = dist::Seconds(20)});
  sum(world);
  say(fmt::format("rank {} of {}", world.rank(), world.size()));
  if (what == "split") sum(world.split(0).value());
  if (what == "lines")
    for (std::string line; std::getline(std::cin, line);)
      say(fmt::format("rank {} has '{}'", world.rank(), line));
  if (what != "child") return 0;
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return run_main([&] { return run(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : ""); });
}
