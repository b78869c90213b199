#pragma once
/// While this exists, the calling thread takes no signals: they wait, or another thread takes them.
/// Threads of our own begin so, and inherit it: a signal is for the program's threads, which may
/// have handlers that expect to run there, or wait for it. Not blocked are those that a thread's
/// own fault raises: the program's handler reports it.
///
///   const SignalsBlocked signals;
///   thread_ = std::thread(...);
///
/// The calling thread's own mask is as before when it ends.

#include <signal.h>

namespace lockstep {

class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (const int own_fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGSYS, SIGTRAP})
      sigdelset(&all, own_fault);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace lockstep
