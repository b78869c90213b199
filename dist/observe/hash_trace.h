#pragma once
/// Hash traces: a hash of every result, in the order in which a rank computes, to hunt a different
/// bit. `./lockstep diff A B` names the first result that two runs do not have in common.
///
///   World world = World::join();
///   dist::HashTrace trace(world, "a");     // writes a (rank 0), a.1, a.2, ...
///   train();                               // as ever
///
/// A line for each result, with tabs between its fields:
///
///   step  place      operation  name      dtype  shape     of     hash
///   1     parameter  linear     0.weight  f32    (64, 64)  world  8b0e6f1f3f7c2a10  as it is used
///   1     input      linear     0.weight  f32    (32, 64)  rank   ...  that nothing has computed
///   1     forward    linear     0.weight  f32    (32, 64)  rank   ...  its output
///   1     backward   linear     4.weight  f32    (32, 10)  rank   ...  gradient of its output
///   1     gradient   linear     4.weight  f32    (10, 64)  rank   ...  when it is ready
///   1     gradient              4.weight  f32    (10, 64)  world  ...  as the optimizer takes it
///   1     parameter             4.weight  f32    (10, 64)  world  ...  after the step
///   1     buffer                1.mean    f32    (64,)     world  ...  after a synchronization
///
/// A step ends with an optimizer's step. "name" is that of a parameter, else the path of the module
/// that computes. "of" is what the value belongs to: this rank, or the world. With lanes
/// (core/lanes.h) rows that belong to lanes are of "4/8" if the first of them is lane 4 of 8, and
/// have a hash for each lane of this rank. So runs with different numbers of ranks can be compared:
/// lane by lane, and in what belongs to the world.
///
/// In the place of an end, a run that was killed has its last whole line: steps are flushed.
///
/// What it costs: without one, a read of a thread-local pointer. With one, a pass over each result
/// and about 70 bytes a line; on a GPU each result is copied to the host and waited for. Steps that
/// a StepGraph records throw StateError.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/dist/world/world.h"

namespace lockstep::dist {

struct HashTraceOptions {
  std::int64_t first_step = 1;  ///< the number of the first step: of a run that goes on
  /// Also write the elements of one record, counted from 1 in its step, as `./lockstep diff` asks.
  struct Record {
    std::int64_t step, record;
  };
  std::optional<Record> values;
};

/// Writes what its thread computes, from its construction to its end, on that thread. An end by an
/// exception leaves a file that is cut off.
class [[nodiscard]] HashTrace {
 public:
  /// Collective. Replaces the files of an earlier run. Throws on every rank, DataError or
  /// PeerError, if one of them cannot write its file; StateError if this thread has one already.
  /// What cannot be written later is a DataError of the operation whose result it is.
  HashTrace(const World& world, const std::string& path, const HashTraceOptions& options = {});
  ~HashTrace();
  HashTrace(const HashTrace&) = delete;
  HashTrace& operator=(const HashTrace&) = delete;

 private:
  class Writer;
  std::unique_ptr<Writer> writer_;
};

}  // namespace lockstep::dist
