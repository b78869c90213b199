#pragma once
/// What a rank does while it waits for others on the same machine. A rank that spins notices an
/// answer soonest. But with more ranks than cores it holds the core that its peer needs, and a long
/// wait must not heat the machine. Therefore it spins (only if every rank can have a core), then
/// yields, then naps, longer each time.
///
/// Thread-safety: may be called by any thread.

#include <chrono>

namespace lockstep::dist {

class Backoff {
 public:
  /// `ranks` wait on this machine.
  explicit Backoff(int ranks);

  /// The `round`-th wait in a row. True after a nap, and after some yields, long on a busy machine:
  /// then the caller has time to check whether every peer is still alive.
  bool relax(unsigned round) const;
  /// Whether relax(round) spins.
  bool spins(unsigned round) const { return round < spins_; }

 private:
  unsigned spins_;
};

/// Cores that this process may use.
int available_cores();

}  // namespace lockstep::dist
