#pragma once
/// Traces: what every rank computes, sends and waits for, and when.
///
///   World world = World::join();
///   dist::Trace trace(world, "traces");     // writes traces/rank-0.json, rank-1.json, ...
///   train();                                // as ever
///
/// A file is in Chrome's trace format and opens in ui.perfetto.dev. A rank is a process there, with
/// these tracks:
///
///   thread          operations forward and backward, optimizer, loading of batches; calls of
///                   collectives, progress() that moved something, waits and for whom; when each
///                   gradient became ready, buckets were launched, and the verdict
///   communication   each collective from its begin to its end, and the steps of its plan: to
///                   whom and from whom, which elements. One track per communicator
///   stream          on GPUs: when each kernel and copy ran. One track per stream; what is
///                   in a collective or a recorded step is one slice
///   values          what an nn::Metrics of this thread is given: a counter for each tag
///
/// `./lockstep trace DIR` says what they amount to. On GPUs the thread's slices are the enqueuing
/// of work, not the work. In the simulator a stream's slices last as long as the simulating does.
///
/// What it costs: about 0.1 us and 128 bytes per event; nothing measurable without a Trace.

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/dist/world/world.h"

namespace lockstep::dist {

struct TraceOptions {
  /// The first so many events of each rank are kept. The file says how many others there were:
  /// later ones, and those of communicators and streams beyond the 255th.
  std::int64_t most_events = 1'000'000;
};

/// Records what its thread does, from its construction to write(). It must end on that thread: on
/// another one its end is a line on stderr, and nothing is written.
///
/// Until write() an earlier run's files stay. So what ends a run without write() (a signal, _exit,
/// an uncaught exception) leaves them as they are.
class [[nodiscard]] Trace {
 public:
  /// Collective. Makes the folder if there is none. Clocks of all ranks are aligned here. Keeps the
  /// world, which so ends no sooner than this. Throws on every rank, DataError or PeerError, if one
  /// of them cannot write there; StateError if this thread has a Trace already.
  Trace(const World& world, const std::string& directory, const TraceOptions& options = {});
  /// The same for the ranks of a communicator. What happens after its end has the time of that.
  Trace(Communicator& communicator, const std::string& directory, const TraceOptions& options = {});
  /// write(), unless it was called; an error is one line on stderr.
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// Ends the recording and writes this rank's file, in place of an earlier run's. Rank 0 removes
  /// files of ranks that this run has not. Not collective. Throws DataError; StateError on another
  /// thread, or if it was called before.
  void write();

 private:
  struct State;
  static void keep_for_ever(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace lockstep::dist
