#pragma once
/// The command line of `train`.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/dist/ddp/ddp_options.h"
#include "lockstep/dist/observe/hash_trace.h"
#include "lockstep/samples/common/ranks.h"
#include "lockstep/tools/precision.h"

namespace train_mlp {

struct Options : lockstep::samples::RunOptions {
  std::vector<std::int64_t> layers;  ///< widths; empty: INPUT,128,64,10
  std::int64_t epochs = 30;
  std::int64_t batch = 32;  ///< samples per rank and step; with lanes of all ranks
  int lanes = 0;            ///< in which a batch is cut (core/lanes.h); 0: none
  std::int64_t audit = 0;   ///< steps from one audit to the next (dist/audit/audit.h); 0: none
  std::string optimizer = "sgd";
  std::optional<double> lr;            ///< sgd 0.1, lion 0.0003, others 0.001
  std::optional<double> momentum;      ///< sgd 0.9, rmsprop 0
  std::optional<double> weight_decay;  ///< 0; adamw 0.01
  std::uint64_t seed = 0;
  lockstep::cli::Precision precision;
  std::string data;  ///< a folder of IDX files
  bool shuffle = true;
  bool padded = false;
  bool record = true;              ///< on a GPU: steps are recorded once, then replayed
  lockstep::dist::DdpOptions ddp;  ///< sizes of buckets, determinism
  std::string plan = "ready";      ///< order of the buckets: registration or ready
  std::string hook = "none";       ///< what travels: none, bf16 or f16
  bool shard_optimizer = false;
  std::string trace;       ///< a folder: what each rank does, and when
  std::string hash_trace;  ///< a file: a hash of every result
  std::optional<lockstep::dist::HashTraceOptions::Record> hash_values;  ///< whose values, too
  std::string metrics;                ///< a folder: losses, accuracy, speed
  std::string checkpoint;             ///< a file: the state of the run, to be resumed
  std::int64_t checkpoint_every = 0;  ///< steps; 0: only at the end
  bool checkpoint_async = false;      ///< a thread writes it
  int keep = 1;
  bool resume = false;
  std::string save_model;  ///< a file: the trained model alone
};

/// Whether README's hash is that of these options: all that change the bits are the defaults.
bool as_published(const Options& options);

/// Throws UsageError with one line for anything that makes no sense. After --help, which it prints,
/// nothing is returned.
std::optional<Options> parse(int argc, const char* const* argv);

/// Throws UsageError if --checkpoint or --save-model cannot be written here: better before the
/// training than after it. For the process that starts the ranks, and for rank 0, which writes
/// them.
void check_files(const Options& options);

}  // namespace train_mlp
