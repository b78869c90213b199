#pragma once
/// What a rank does while it waits for others on the same machine. Answers come fastest to one who
/// spins; but with more ranks than cores a spinning rank holds the core that its peer needs, and a
/// long wait must not heat the machine. So: spin (only if every rank can have a core), then yield,
/// then nap, longer each time.

#include <chrono>

namespace lockstep::dist {

class Backoff {
 public:
  /// `ranks` wait on this machine.
  explicit Backoff(int ranks);

  /// The `round`-th wait in a row. True if it was a nap: the caller can then afford to look around
  /// (is every peer still alive?).
  bool relax(unsigned round) const;
  /// Whether relax(round) spins.
  bool spins(unsigned round) const { return round < spins_; }

 private:
  unsigned spins_;
};

/// Cores that this process may use.
int available_cores();

}  // namespace lockstep::dist
