#pragma once
/// What a call of a collective returns at once.

#include <cstdint>
#include <exception>
#include <optional>

#include "lockstep/dist/rendezvous/ranks.h"

namespace lockstep::dist {

class Communicator;

/// A collective that is under way: a small value. Dropping it does not stop the collective. It must
/// not outlive its communicator.
class Work {
 public:
  Work() = default;  ///< already done
  Work(Communicator* communicator, std::uint64_t sequence)
      : communicator_(communicator), sequence_(sequence) {}

  /// Moves what can be moved without waiting. True once the collective has ended well.
  bool progress();
  /// On the host: returns when the tensors are ready to be used. On a GPU: lets the current stream
  /// wait for them; the host goes on.
  /// Throws CommError if nothing moved for `timeout`; default: the communicator's.
  void wait(std::optional<Seconds> timeout = {});
  /// Waits until the collective has ended, for tensors on a GPU too.
  void finish(std::optional<Seconds> timeout = {});
  /// What it failed with, or null.
  std::exception_ptr exception() const;

 private:
  Communicator* communicator_ = nullptr;
  std::uint64_t sequence_ = 0;
};

}  // namespace lockstep::dist
