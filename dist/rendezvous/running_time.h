#pragma once
/// A stopwatch that knows pauses of its own process. Thread-safety: none.

#include <algorithm>
#include <optional>

#include "lockstep/dist/rendezvous/ranks.h"

namespace lockstep::dist {

/// How long something has been waited for, in time in which this process ran. A waiting process
/// looks at the clock often. If it has not looked for longer than `longest_nap`, it was stopped, or
/// its container was frozen, or others had its core: what is beyond that does not count. So a job
/// that is stopped and goes on later does not take its own pause for a pause of another rank.
class RunningTime {
 public:
  explicit RunningTime(Seconds longest_nap = Seconds(0.1)) : longest_nap_(longest_nap) {}

  /// It is `now`, on any clock. For how long has it been waited since the first look?
  Seconds look(Seconds now) {
    if (looked_) time_ += std::min(now - *looked_, longest_nap_);
    looked_ = now;
    return time_;
  }
  Seconds time() const { return time_; }  ///< at the last look
  /// The next look is the first one.
  void restart() {
    time_ = Seconds(0);
    looked_.reset();
  }

 private:
  Seconds longest_nap_, time_{0};
  std::optional<Seconds> looked_;
};

}  // namespace lockstep::dist
