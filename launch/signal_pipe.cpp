#include "lockstep/launch/signal_pipe.h"

#include <sys/signalfd.h>
#include <unistd.h>

namespace lockstep::dist {

SignalPipe::SignalPipe() {
  sigset_t wanted;
  sigemptyset(&wanted);
  for (int number : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&wanted, number);
  struct sigaction hangup;
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaddset(&wanted, SIGHUP);
  descriptor_ = Descriptor(
      checked(signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK), "take signals from a descriptor"));
  child_action_ = signal(SIGCHLD, SIG_DFL);  // if it is ignored, children vanish unseen
  pipe_action_ = signal(SIGPIPE, SIG_IGN);
  sigprocmask(SIG_BLOCK, &wanted, &mask_before_);
}

SignalPipe::~SignalPipe() {
  take();  // a signal that came late has had its effect: everything has ended
  sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
  signal(SIGCHLD, child_action_);
  signal(SIGPIPE, pipe_action_);
}

std::optional<int> SignalPipe::take() {
  std::optional<int> first;
  signalfd_siginfo info;
  while (read(descriptor_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info))
    if (!first && info.ssi_signo != SIGCHLD) first = static_cast<int>(info.ssi_signo);
  return first;
}

}  // namespace lockstep::dist
