#pragma once
/// What a call of a collective returns at once.

#include <cstdint>
#include <optional>

#include "lockstep/core/system/lifetime.h"
#include "lockstep/dist/collectives/operation.h"
#include "lockstep/dist/rendezvous/ranks.h"

namespace lockstep::dist {

class Communicator;

/// A collective that is under way: a small value. Dropping it does not stop the collective. Once
/// its communicator has ended, with its World or group, calls throw StateError.
class Work {
 public:
  Work() = default;  ///< already done
  Work(Communicator* communicator, std::uint64_t sequence);

  /// Moves what can be moved without waiting. True once the collective has ended well.
  bool progress();
  /// On the host: returns when the tensors are ready to be used. On a GPU: lets the current stream
  /// wait for them; the host goes on.
  /// Throws CommError if nothing moved for `timeout`; default: the communicator's.
  void wait(std::optional<Seconds> timeout = {});
  /// Waits until the collective has ended, for tensors on a GPU too.
  void finish(std::optional<Seconds> timeout = {});

 private:
  friend class Communicator;
  Communicator* living(const char* call) const;  // null: already done
  Communicator* communicator_ = nullptr;
  Lifetime::Ref life_;
  std::uint64_t sequence_ = 0;
  Operation operation_ = Operation::barrier;
};

}  // namespace lockstep::dist
