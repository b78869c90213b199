#pragma once
/// Signals as readable bytes, so that a launcher waits for them in the same poll() as for
/// everything else: no handler, no race between a check and a wait.

#include <signal.h>

#include <optional>

#include "lockstep/dist/rendezvous/descriptor.h"

namespace lockstep::dist {

/// While it lives, SIGINT, SIGTERM, SIGHUP (unless it is ignored: nohup) and SIGCHLD do not act on
/// the calling thread but make descriptor() readable, and SIGPIPE is ignored. Then all is as
/// before.
class SignalPipe {
 public:
  SignalPipe();
  ~SignalPipe();
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;

  int descriptor() const { return descriptor_.get(); }

  /// The signals that were blocked before, for the programs that are started meanwhile.
  const sigset_t& mask_before() const { return mask_before_; }

  /// Takes all that has come; returns the first that is not SIGCHLD, which only need wake up
  /// poll().
  std::optional<int> take();

 private:
  Descriptor descriptor_;
  sigset_t mask_before_;
  void (*child_action_)(int);
  void (*pipe_action_)(int);
};

}  // namespace lockstep::dist
