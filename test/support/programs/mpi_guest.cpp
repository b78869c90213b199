// A program that uses MPI itself, beside a World over MPI. Which calls it makes itself, its
// argument says:
//
//   around       MPI_Init and MPI_Finalize around the World
//   threads      the same with MPI_Init_thread(MPI_THREAD_MULTIPLE)
//   twice        the same, with two Worlds one after another
//   finalize     MPI_Finalize alone, after the World
//   neither      none of the two
//   inside       MPI_Finalize while the World lives, which then ends
//   too-early    MPI_Finalize, then a collective of the World
//   pending      MPI_Finalize while a collective is under way
//   over         MPI_Finalize before World::join
//   other-thread MPI_Init in the main thread, World::join in another one
//   late         MPI_Init; rank 1 never calls World::join
//   alone        MPI_Init without mpirun

#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "lockstep/launch/report.h"
#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

World joined(double timeout = 60) {
  return World::join({.comm = "mpi", .timeout = dist::Seconds(timeout)});
}

void sum(World& world) {
  const Tensor data = Tensor::full({1000}, world.rank() + 1);
  world.communicator().all_reduce(data, "sum").wait();
  const int ranks = world.size();
  check<StateError>(data.data<float>()[999] == static_cast<float>(ranks * (ranks + 1) / 2),
                    "a wrong sum");
}

/// What is the program's must be as it has left it.
void own_traffic(bool handler_of_ours) {
  MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
  MPI_Comm_get_errhandler(MPI_COMM_WORLD, &handler);
  check<StateError>(!handler_of_ours || handler == MPI_ERRORS_ARE_FATAL, "another error handler");
  int rank = 0, total = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Allreduce(&rank, &total, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
}

int run(std::string_view how) {
  const bool finalizes = how != "neither";
  const bool initializes = how != "finalize" && how != "neither";
  int level = 0;
  if (how == "threads")
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
  else if (initializes)
    MPI_Init(nullptr, nullptr);
  if (initializes) own_traffic(true);
  if (how == "over") MPI_Finalize();
  int rank = 0;
  if (how == "late") MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (how == "late" && rank == 1) {
    std::this_thread::sleep_for(std::chrono::seconds(3));
    return 0;
  }
  if (how == "other-thread") {
    std::string message;
    std::thread([&] {
      try {
        joined();
      } catch (const Error& error) {
        message = error.what();
      }
    }).join();
    MPI_Finalize();
    if (!message.empty()) fail<UsageError>("{}", message);
    return 0;
  }
  for (int times = how == "twice" ? 2 : 1; times > 0; --times) {
    World world = joined(how == "late" ? 1 : 60);
    sum(world);
    if (initializes) own_traffic(true);
    dist::Work pending;
    if (how == "pending") pending = world.communicator().barrier("pending");
    if (how == "inside" || how == "too-early" || how == "pending") MPI_Finalize();
    if (how == "too-early") sum(world);
    if (how == "pending") pending.wait();
    if (how == "inside") return 0;
  }
  if (finalizes) {
    own_traffic(initializes);
    MPI_Finalize();
  }
  std::fputs("all well\n", stdout);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return run_main([&] { return run(argc > 1 ? argv[1] : "around"); });
}
