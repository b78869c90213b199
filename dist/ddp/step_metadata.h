#pragma once
/// Step metadata: what every rank tells the others about its step, and what all of them decide. It
/// travels with the last bucket, as elements behind the gradients, and so needs no separate message
/// (except after a communication hook, which sends something else):
///
///     bucket 1   | 0.w 0.b | used by how many ranks | rank 0's metadata | rank 1's | ...
///
/// A rank writes its metadata, and zeros for the other ranks: the sum is the metadata of all ranks.
/// It is cut into numbers of 16 bits, one per element. f32 and f64 add them to zeros without
/// rounding.
///
/// The decision is a pure function of all ranks' metadata (and of the sums, if NonFinite looks in
/// them), so all ranks come to the same verdict. A step, here, is one synchronizing backward.

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/autograd/gradient_observer.h"

namespace lockstep::dist {

struct StepMetadata {
  double weight = 0;           ///< of what this rank contributes
  double divisor = 0;          ///< by which its contributions were divided: see Contribution
  double compute_seconds = 0;  ///< from the last synchronization's end until its last gradient was
                               ///< ready, without waiting for other ranks
  double wait_seconds = 0;     ///< that it waited for others in the step before
  std::uint64_t layout_digest = 0;  ///< of its bucket layout
  BatchOrigin origin;               ///< which batch it took (core/shard.h)
  std::uint64_t steps_digest = 0;   ///< of the optimizers' options in the steps since the last
  std::uint64_t replica_fingerprint = 0;  ///< of what all steps so far have left (replica_check.h)
  std::int64_t bad_element = -1;          ///< of `bad_parameter` or its gradient: infinite or NaN
  std::int32_t bad_parameter = -1;
  Contribution::Divisor kind = Contribution::Divisor::none;
  std::uint8_t already_reduced = 0;  ///< 1: its gradients held what an earlier backward reduced
  std::uint8_t joined = 0;           ///< 1: it has no more data (DistributedDataParallel::join)
  std::uint8_t unused = 0;           ///< for the next field of one byte
};
static_assert(sizeof(StepMetadata) == 88, "every byte is sent: none may be padding");

constexpr std::int64_t metadata_elements = sizeof(StepMetadata) / 2;

/// `to` and `from` have `metadata_elements` elements.
template <class T>
void to_elements(const StepMetadata& metadata, std::span<T> to);
template <class T>
StepMetadata from_elements(std::span<const T> from);

enum class StepVerdict : std::uint8_t {
  commit,  ///< the gradients hold the weighted mean
  skip,    ///< they are given up: no parameter has a gradient, and the optimizer steps none
  stop,    ///< backward throws on every rank
};

/// What to do about numbers that are infinite or NaN. `skip` and `stop` look through gradients.
enum class NonFinite : std::uint8_t {
  report,  ///< a step, in its pass, left one in a parameter: a later backward stops all ranks
  ignore,  ///< nothing, and no search for one
  skip,    ///< one in a gradient: give up the step, on all ranks
  stop,    ///< one in a gradient: stop training, on all ranks
};

struct StepOutcome {
  StepVerdict verdict = StepVerdict::commit;
  double weight = 0;        ///< of all ranks
  double scale = 1;         ///< by which the sums are to be multiplied
  bool all_joined = false;  ///< no rank has data left
  int source = 0;           ///< the first rank with data, whose buffers all take over; 0 if none
  bool nonfinite = false;   ///< `bad_rank` found what is infinite or NaN
  int bad_rank = 0;
  bool replicas_differ = false;
  std::string problem;  ///< why the verdict is `stop`, unless `nonfinite` or `replicas_differ` is
};

/// Why all ranks must stop, or "" (step_text.cpp). Contributions can be scaled to the mean only if
/// all were divided by the same number. `first` is that of rank `source`, the first. `known_as[r]`:
/// rank r, in texts.
std::string contradiction(std::span<const StepMetadata> metadata, const StepMetadata& first,
                          int source, std::span<const int> known_as = {});

/// `metadata[r]` is rank r's.
StepOutcome decide_step(std::span<const StepMetadata> metadata, NonFinite policy);

}  // namespace lockstep::dist
