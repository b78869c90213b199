#pragma once
/// The last comparison of replicas: what each was when its DistributedDataParallel ended. No rank
/// waits at that end, so a replica leaves its fingerprint to a receiver that outlives the ranks:
///
///   ranks that are threads          to run_threads, which throws if replicas differ
///   ranks of a launcher of ours     to the launcher (an event, rank_event.h), which reports them
///                                   and exits with 1; with several nodes, node 0's compares all
///   ranks of another launcher       to none: let DistributedDataParallel::check_replicas() be
///                                   the program's last line

#include <unistd.h>

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace lockstep::dist {

/// What is left when a DistributedDataParallel is made. If it is never replaced, the rank has ended
/// without ending it: by std::exit, for example.
inline constexpr std::uint64_t not_ended = 0;
/// What is left by a rank that has been told by an error that something is wrong.
inline constexpr std::uint64_t not_compared = 1;

/// Thread-safe.
class LeftReplicas {
 public:
  /// `model` is a number that its `replicas` share, and no other model has. Once all replicas have
  /// ended alike, nothing is kept of the model.
  void add(std::uint64_t model, int rank, std::uint64_t fingerprint, int replicas = 0);
  /// An error that was found when a replica ended; the first is kept.
  void add_error(std::exception_ptr error);
  std::exception_ptr error() const;
  std::size_t models() const;  ///< of how many something is kept
  /// Of the models that several ranks have left: which ranks' replicas differ; empty if none do.
  std::string difference() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::map<int, std::uint64_t>> models_;  // fingerprints by rank
  std::exception_ptr error_;
};

/// A rank that is a thread leaves its replicas in `left`, under its rank in the job. `left` is null
/// for a rank that is a process.
struct ThreadRank {
  std::shared_ptr<LeftReplicas> left{};
  int rank = 0;
};

/// Tells the receiver that outlives this rank.
void leave_replica(const ThreadRank& thread, std::uint64_t model, std::uint64_t fingerprint,
                   int replicas = 0) noexcept;
/// Where an object was made, for a destructor that looks after other ranks.
struct Birth {
  int process = ::getpid();
  int exceptions = std::uncaught_exceptions();  // on their way then

  bool forked_since() const { return ::getpid() != process; }  ///< a child is no rank
  bool unwinding() const { return std::uncaught_exceptions() > exceptions; }  ///< by an exception
};

/// Within a catch block of a destructor, which cannot throw: run_threads throws the error. A rank
/// that is a process ends, as by an uncaught error (failure_record.h).
void leave_error(const ThreadRank& thread) noexcept;

}  // namespace lockstep::dist
