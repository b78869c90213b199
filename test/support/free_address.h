#pragma once
/// Addresses for tests at which no other process listens, connects from, or soon will.

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <string>

namespace lockstep::test {

/// An address of this machine that belongs to this process: all of 127.0.0.0/8 is the machine's.
/// A process number has at most 22 bits.
inline std::string own_host() {
  const int process = ::getpid();
  return fmt::format("127.{}.{}.{}", 1 + (process >> 16), process >> 8 & 255, process & 255);
}

/// A port, another one at each call and hardly ever one of a process that runs beside this one: a
/// listener for several machines takes its port on all addresses. The kernel gives a connection its
/// port from 32768 on, and so none of these.
inline int free_port() {
  static std::atomic<int> given = 0;
  return 10'000 + (::getpid() * 41 + given++) % 20'000;
}

/// "HOST:PORT", where nobody listens.
inline std::string free_address() { return fmt::format("{}:{}", own_host(), free_port()); }

}  // namespace lockstep::test
