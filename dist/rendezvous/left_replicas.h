#pragma once
/// What a rank tells those who outlive it: that it is in its World, and what its replicas were.
///
/// The last comparison of replicas: what each was when its DistributedDataParallel ended. Nobody
/// waits at an end, so a replica leaves its fingerprint to somebody who outlives the ranks:
///
///   ranks that are threads          to run_threads, which throws if replicas differ
///   ranks of a launcher of ours     to the launcher (a line in the pipe LOCKSTEP_ERROR_FD), which
///                                   reports them and exits with 1; with several nodes, node 0's
///                                   compares those of all
///   ranks of another launcher       to nobody: let DistributedDataParallel::check_replicas() be
///                                   the program's last line

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::dist {

/// What is left when a DistributedDataParallel is made. If it is never replaced, the rank has ended
/// without ending it: by std::exit, for example.
inline constexpr std::uint64_t not_ended = 0;
/// What is left by a rank that has been told by an error that something is wrong.
inline constexpr std::uint64_t not_compared = 1;

/// Thread-safe.
class LeftReplicas {
 public:
  /// `model` is a number that its `replicas` share, and no other model has. Once all of them have
  /// ended alike, nothing is kept of it.
  void add(std::uint64_t model, int rank, std::uint64_t fingerprint, int replicas = 0);
  std::size_t models() const;  ///< of how many something is kept
  /// Of the models that several ranks have left: which ranks' replicas differ; empty if none do.
  std::string difference() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::map<int, std::uint64_t>> models_;  // fingerprints by rank
};

/// A rank that is a thread leaves its replicas in `left`, under its rank in the job. `left` is null
/// for a rank that is a process.
struct ThreadRank {
  std::shared_ptr<LeftReplicas> left{};
  int rank = 0;
};

/// Tells whoever outlives this rank.
void leave_replica(const ThreadRank& thread, std::uint64_t model, std::uint64_t fingerprint,
                   int replicas = 0) noexcept;

/// A rank joins: from now on its launcher's pipe is the one that LOCKSTEP_ERROR_FD says now,
/// whatever becomes of the environment.
void remember_launcher_pipe();
/// The launcher's pipe, if there is one and the descriptor still is that pipe.
std::optional<int> launcher_pipe();

/// What a rank tells its launcher of the world of its job, which the launcher cannot see: whether
/// it is still in it when others have ended theirs, and then, whether it is at work or hangs.
struct WorldRecord {
  enum class Kind {
    begins,  ///< "world begins <timeout>"
    works,   ///< "world works": the rank is at work (core/system/progress.h)
    ends,    ///< "world ends"
  };
  Kind kind{};
  double timeout = 0;  ///< of one that begins, in seconds; 0: it will not tell whether it works
};
/// Best effort. `works` is dropped where the launcher reads nothing: a thread tells it that must
/// not wait.
void tell_world(const WorldRecord& record) noexcept;
/// Nothing for a line (without its newline) that is no such record.
std::optional<WorldRecord> read_world(std::string_view line);

/// One line in the launcher's pipe: "replica <model> <fingerprint>", both hexadecimal.
struct ReplicaRecord {
  std::uint64_t model, fingerprint;
};
std::string write_replica(const ReplicaRecord& record);
/// Nothing for a line (without its newline) that is no such record.
std::optional<ReplicaRecord> read_replica(std::string_view line);

}  // namespace lockstep::dist
