#pragma once
/// A rank that works alone while others wait for that (on_rank0) tells them on the wait board that
/// it is at work: a note in each sixteenth of the timeout. A separate thread looks whether the rank
/// is at work (core/system/progress.h), and stops with the process.
///
///   rank 0    |-- writes a file: note, note, note ... --|    or it hangs: no more notes
///   others    |-- wait, and count from the last note ---|
///
/// After an hour it tells nothing more: that is as long as others wait for such work.
///
/// Thread-safety: the rank's own thread makes and ends a Pulse. Until then only that one uses the
/// board.

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "lockstep/core/system/progress.h"
#include "lockstep/dist/transport/wait_board.h"

namespace lockstep::dist {

constexpr Seconds longest_work{3600};

class Pulse {
 public:
  /// Of the calling thread. `timeout`: for which others wait without a note.
  Pulse(std::shared_ptr<WaitBoard> board, Seconds timeout);
  ~Pulse();  ///< the work has ended
  Pulse(const Pulse&) = delete;
  Pulse& operator=(const Pulse&) = delete;

 private:
  void run();

  std::shared_ptr<WaitBoard> board_;
  Seconds interval_;
  std::shared_ptr<const Progress> progress_ = Progress::of_this_thread();
  std::mutex mutex_;
  std::condition_variable wake_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace lockstep::dist
