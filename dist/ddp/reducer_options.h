#pragma once
/// The options of a reducer: second reading.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "lockstep/autograd/parameter.h"
#include "lockstep/dist/ddp/buckets/bucket_layout.h"
#include "lockstep/dist/ddp/hooks/communication_hook.h"
#include "lockstep/dist/ddp/nonfinite.h"
#include "lockstep/dist/ddp/step_metadata.h"

namespace lockstep::dist {

/// For what, beside the same command again, the bits of a training are to be the same. Each level
/// has what the ones above it promise.
///
///   level    the same bits for                        what gives them
///   run      the same command again                   everything
///   layout   any buckets, transport, thread count     sums in a tree over the ranks (`direct`)
///   world    any number of ranks                      lanes (core/lanes.h)
///   machine  any processor with FMA, AVX2 or AVX-512  f32 on the CPU, chain products
///
/// Whoever asks for a level in DdpOptions gets it, or an error that names what stands in its way.
///
/// Of level machine: it takes the same compiler and libraries (Eigen's functions, the C library's
/// logarithms), and so the same bits were seen from builds for x86-64-v3 and x86-64-v4.
enum class Deterministic : std::uint8_t { run, layout, world, machine };

inline constexpr std::array<std::string_view, 4> deterministic_names{"run", "layout", "world",
                                                                     "machine"};
inline std::string_view name_of(Deterministic level) {
  return deterministic_names[static_cast<std::size_t>(level)];
}

struct ReducerOptions {
  BucketCaps caps;
  bool rebuild_buckets = true;              ///< once, in the order of the first backward
  std::optional<BucketLayout> layout = {};  ///< of a checkpoint: then it is never changed
  NonFinite nonfinite = NonFinite::report;
  Deterministic deterministic = Deterministic::run;
  std::shared_ptr<CommunicationHook> hook = {};  ///< null: buckets are summed where they lie
  bool deferred = false;                         ///< see reducer_deferred.cpp
  bool check_replicas = true;                    ///< compare the replicas at every step
  std::vector<Parameter> frozen = {};            ///< compared with the others
  /// Called on every rank after each synchronization, with the first rank that had data.
  std::function<void(StepVerdict verdict, int source)> after_sync = {};
};

}  // namespace lockstep::dist
