// The ranks of Open MPI in `bench allreduce`, started by mpirun: mpi_allreduce CAPACITY FOLDER.
// MPI_Allreduce in place, f32.

#include <fmt/format.h>
#include <mpi.h>

#include <cstdlib>
#include <vector>

#include "../allreduce/rank.h"
#include "lockstep/core/error.h"
#include "lockstep/launch/report.h"

namespace bench {
namespace {

class MpiEngine final : public Engine {
 public:
  explicit MpiEngine(std::int64_t capacity) : memory_(static_cast<std::size_t>(capacity)) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void put(std::int64_t begin, std::span<const float> values) override {
    store(memory_, begin, values);
  }
  void get(std::int64_t begin, std::span<float> values) override { load(memory_, begin, values); }
  void all_reduce(std::int64_t count) override {
    MPI_Allreduce(MPI_IN_PLACE, memory_.data(), static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
  }
  void barrier() override { MPI_Barrier(MPI_COMM_WORLD); }

 private:
  int rank_ = 0, size_ = 1;
  std::vector<float> memory_;
};

int run(int argc, char** argv) {
  lockstep::check<lockstep::UsageError>(argc == 3, "usage: bench_allreduce_mpi CAPACITY FOLDER");
  int major = 0, minor = 0, length = 0;
  char library[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  MPI_Get_library_version(library, &length);
  std::sscanf(library, "Open MPI v%d.%d", &major, &minor);
  MpiEngine engine(std::atoll(argv[1]));
  serve(engine, major > 0 ? fmt::format("Open MPI {}.{}", major, minor) : "MPI", argv[2]);
  return 0;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const int code = lockstep::run_main([&] { return bench::run(argc, argv); });
  if (code != 0) MPI_Abort(MPI_COMM_WORLD, code);
  MPI_Finalize();
  return code;
}
