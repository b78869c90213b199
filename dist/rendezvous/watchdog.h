#pragma once
/// Ends a process that does not notice that its job has failed, because it never calls: it loops,
/// or computes for long. The others cannot end it, and not every launcher does.
///
///   another rank gave up, or is gone |------- patience -------| one line to stderr, _exit(1)
///                                    this rank makes no call: it has not heard of it
///
/// In a job that survives an exit code would end all ranks. There this rank counts as lost: it
/// tells the launcher that it hangs, and ends by SIGKILL.
///
/// A rank that has heard of the failure is never ended: it may go on alone. Nor is one whose peers
/// have left in peace. Time in which this process did not run does not count.
///
/// The same thread tells the launcher that this rank is at work, as long as it is. So the launcher
/// finds a rank that hangs and for which no other rank waits (launch/launcher_looks.cpp).
///
/// Thread-safety: one thread owns it. It has its own thread, which only looks at what has arrived
/// at the connections and takes nothing.

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/system/progress.h"
#include "lockstep/dist/rendezvous/frames.h"

namespace lockstep::dist {

class Watchdog {
 public:
  /// `sockets`: of the connections of a rendezvous, by rank, -1 where there is none. They must
  /// outlive it. `tell_loss`: of a job that survives, tells the launcher that this rank hangs.
  Watchdog(int rank, const std::vector<int>& sockets, Seconds patience,
           std::function<void()> tell_loss = {});
  ~Watchdog();

  void heard() { heard_ = true; }                            ///< this rank knows of a failure
  void left(int peer) { places_[index(peer)].left = true; }  ///< in peace: its end is no failure

 private:
  struct Place {
    int socket;
    std::atomic<bool> left{false};
  };
  void run();
  [[noreturn]] void end_process(const std::string& why) const;
  std::string failure() const;

  int rank_;
  std::vector<Place> places_;  // by rank
  Seconds patience_;
  std::function<void()> tell_loss_;  // empty: the job ends with its first lost rank
  std::atomic<bool> heard_{false};
  std::mutex mutex_;
  std::unique_ptr<std::condition_variable> wake_ = std::make_unique<std::condition_variable>();
  bool over_ = false;
  std::shared_ptr<const Progress> progress_ = Progress::of_this_thread();
  int process_;
  std::thread thread_;
};

}  // namespace lockstep::dist
