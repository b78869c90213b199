#pragma once
/// What traces amount to: steps, overlap, exposed communication, waits. Pure functions.
///
/// A step ends with the verdict of its synchronization. The first step is left out of all figures:
/// buckets are laid out anew after it. Times are microseconds.
///
///   in flight    a collective has begun and not ended
///   exposed      the thread is in the communicator: it calls a collective, moves bytes or waits
///   hidden       in flight, while the thread does something else: overlap
///
/// On CPUs the thread itself moves the bytes, so that even perfect overlap leaves some exposed.

#include <map>
#include <string>
#include <vector>

#include "lockstep/tools/trace/trace_file.h"

namespace lockstep::traces {

/// Of one rank, sums over the steps.
struct RankFigures {
  double time = 0;  ///< of the steps, from verdict to verdict
  double forward = 0, backward = 0, optimizer = 0, load = 0;  ///< without what is exposed in them
  double exposed = 0;  ///< of it, waiting for others: `waits`
  double in_flight = 0, hidden = 0;
  std::map<int, double> waits{};  ///< by the rank for which it waited
  /// Neither computing nor communicating: the program's own code between operations.
  double other() const { return time - forward - backward - optimizer - load - exposed; }
};

/// One bucket in one step on one rank, after that step's backward began.
struct BucketTimes {
  std::string name;
  std::int64_t bytes = 0;
  double ready = 0;            ///< its last gradient was
  double launched = 0;         ///< its collective was called
  double begun = 0;            ///< the collective came to the front of the queue
  double arrived = 0;          ///< the sum was complete
  std::int64_t sequence = -1;  ///< number of the collective, the same on all ranks; -1: not traced
};

/// One step of all ranks.
struct Step {
  std::string verdict;
  struct Rank {
    double begin = 0, end = 0;                      ///< from the verdict before to its own
    double backward_begins = 0, backward_ends = 0;  ///< the first and the last operation
    std::vector<BucketTimes> buckets{};             ///< in the order of their launch
  };
  std::vector<Rank> ranks;  ///< as the traces
};

/// The steps that all traces have, in order, the first one left out. A rank may have more: its
/// trace ended later, or it trains another model, too, which is then part of its step. A verdict is
/// the same on two ranks if its buckets have the same names and collectives. Throws DataError if
/// the ranks have fewer than two in common.
std::vector<Step> steps_of(const std::vector<RankTrace>& traces);

/// Of all steps, as the traces.
std::vector<RankFigures> figures_of(const std::vector<RankTrace>& traces,
                                    const std::vector<Step>& steps);
/// Of each step, of the trace at `place`.
std::vector<RankFigures> figures_by_step(const std::vector<RankTrace>& traces,
                                         const std::vector<Step>& steps, std::size_t place);

/// The best that the same buckets could do, if they needed no thread: each begins when it is ready
/// on all ranks and the one before it has arrived, and takes its cost. Returns the time from the
/// last rank's end of backward until the last bucket has arrived, at least 0.
double ideal_exposed(const Step& step, const std::map<std::string, double>& cost);

/// What each bucket takes, by its name, once the last rank has begun it: the shortest time in all
/// steps.
std::map<std::string, double> bucket_costs(const std::vector<Step>& steps);

/// The events of a trace that touch each part of the time, in the trace's order. Part k ends at
/// `ends[k]`, which it includes, and begins at the end before it. Of ascending ends.
std::vector<std::vector<const Event*>> events_of_parts(const RankTrace& trace,
                                                       const std::vector<double>& ends);

/// All that as a text of some lines.
std::string summary(const std::vector<RankTrace>& traces);

}  // namespace lockstep::traces
