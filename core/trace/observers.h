#pragma once
/// What observes this thread: the one place that an operation, a kernel or a collective asks.

namespace lockstep::trace {

class Recorder;       // when this thread does something (core/trace/recorder.h)
class ResultWatcher;  // what it computes (core/trace/results.h)

struct Observers {
  Recorder* recorder = nullptr;
  ResultWatcher* watcher = nullptr;
};

/// Those of this thread. Null: there is none. The code that sets one keeps its object alive.
inline constinit thread_local Observers here;

}  // namespace lockstep::trace
