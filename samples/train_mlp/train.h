#pragma once
/// The training run of one rank.

#include <cstdint>
#include <map>
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
  std::size_t buckets = 0;
  std::string bucket_layout;  ///< see dist/ddp/buckets/bucket_layout.h
  lockstep::dist::StepStatistics statistics;
  std::string algorithm;                                 ///< of the largest bucket's all-reduce
  std::string device;                                    ///< of this rank
  std::map<std::string, std::uint64_t> kernel_launches;  ///< on a GPU: by this rank's process
  std::vector<Replica> replicas;
  bool replicas_identical = false;
};

/// Collective. Rank 0 reports progress on stderr and writes the checkpoint.
Result train(const Options& options, const lockstep::World& world);

}  // namespace train_mlp
