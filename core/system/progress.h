#pragma once
/// How far a thread has come in work for which others may wait: whether it is at work, or hangs.
///
///   at work    since the last look it has begun an operation on tensors, hashed, read or written a
///              part of a file; or it waits for the system: a slow disk, a network, another process
///   hangs      it computes, and has done nothing of that: an endless loop, or one operation that
///              takes longer than others are patient
///
/// A thread that is stopped cannot look. So another thread of the same process looks
/// (dist/transport/pulse.h, dist/rendezvous/watchdog.h), which then stops too.
///
/// Thread-safety: any thread may call these functions.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

namespace lockstep {

class Progress {
 public:
  /// Of the calling thread. It may outlive the thread, and is then at work.
  static std::shared_ptr<const Progress> of_this_thread();
  /// The calling thread has come further. Costs next to nothing if no thread looks.
  static void note() noexcept {
    if (here)
      here->steps_.store(here->steps_.load(std::memory_order_relaxed) + 1,
                         std::memory_order_relaxed);
  }

  /// While it exists, the calling thread only waits for another one, whose progress is its own.
  class Through {
   public:
    explicit Through(std::shared_ptr<const Progress> other);
    ~Through();
    Through(const Through&) = delete;
    Through& operator=(const Through&) = delete;

   private:
    std::shared_ptr<const Progress> mine_;
  };

  /// `seen`: what the last look has left there; 0 before the first.
  bool at_work(std::uint64_t& seen) const;

 private:
  struct Owner;
  Progress();

  static inline constinit thread_local Progress* here = nullptr;  // set by of_this_thread()

  std::atomic<std::uint64_t> steps_{1};
  const int thread_;  // as the system counts
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Progress> through_;
};

}  // namespace lockstep
