#pragma once
/// The training run of one rank.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/dist/ddp/reducer.h"
#include "options.h"

namespace train_mlp {

struct Replica {
  int rank;
  int pid;
  std::string digest;  ///< SHA-256 over all parameters
};

/// The same on every rank.
struct Result {
  std::vector<double> losses;  ///< per step: mean over the global batch, before the update
  double train_loss = 0;       ///< sample-weighted mean of the last epoch's losses
  double test_accuracy = 0;
  double samples_per_second = 0;  ///< all ranks together, over the training steps alone
  double bytes_per_step = 0;      ///< that rank 0 exchanged with the others, where they are counted
  std::int64_t replayed_steps = 0;  ///< on a GPU: of a recorded step
  std::size_t buckets = 0;
  std::string bucket_layout;  ///< see dist/ddp/buckets/bucket_layout.h
  lockstep::dist::StepStatistics statistics;
  std::string algorithm;                                 ///< of the largest bucket's all-reduce
  std::string device;                                    ///< of this rank
  std::map<std::string, std::uint64_t> kernel_launches;  ///< on a GPU: by this rank's process
  std::vector<Replica> replicas;
  bool replicas_identical = false;
};

struct State;

/// A run that may go on in another world (dist/world/survive.h).
class Run {
 public:
  Run(const Options& options, const lockstep::World& world);
  ~Run();
  /// Collective. Rank 0 reports progress on stderr and writes the checkpoint. After a CommError,
  /// and in a later world, it goes on from the last step that any of the ranks has taken.
  Result train(const lockstep::World& world);

 private:
  std::unique_ptr<State> state_;
};

}  // namespace train_mlp
