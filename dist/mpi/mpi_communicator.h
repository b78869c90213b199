#pragma once
/// The communicator over MPI's own collectives, for tensors in host memory.
///
/// A call has two parts. First the ranks make sure that they all call the same: an all-reduce of
/// the hash of its CallHeader. If the hashes differ, they exchange the headers, and every rank
/// throws the first difference that it sees. A barrier ends here. The other operations then move
/// the elements, in pieces:
///
///     all_reduce       MPI_Iallreduce of each piece
///     reduce_scatter   MPI_Ireduce of each piece of a rank's part to that rank
///     all_gather       MPI_Ibcast of each piece of a rank's part from that rank
///     broadcast        MPI_Ibcast of each piece
///
/// Several pieces are under way at once; the pieces of different ranks' parts take turns, so that
/// all ranks have something to do. MPI knows no 16-bit numbers: their sums are made in f32 and
/// rounded once, which takes twice the bytes. Only non-blocking calls of MPI are used: a blocking
/// one knows no timeout.
///
/// Determinism: the same bits for the same calls (level *run*). MPI chooses how it adds, by size
/// and number of ranks.
///
/// Which rank is missing: MPI's collectives do not say whom they wait for. Therefore a rank that
/// has waited for half its timeout tells the others in which call it is, and every waiting rank
/// that hears of it does the same. A rank that stays silent is missing.

#include <mpi.h>

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/dist/collectives/queued_communicator.h"
#include "lockstep/dist/mpi/mpi_notes.h"
#include "lockstep/dist/transport/backoff.h"

namespace lockstep::dist {

class MpiCommunicator final : public QueuedCommunicator {
 public:
  /// Takes `comm` for itself, and never frees it: MPI_Comm_free is collective, and this object may
  /// end on one rank alone. The communicators of a program are few.
  /// `members`: of a group, its ranks in the job.
  MpiCommunicator(MPI_Comm comm, Seconds timeout, std::vector<int> members = {});
  ~MpiCommunicator() override;
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Tensor allocate(std::int64_t numel, DType dtype, Device device = {}) override;
  std::string_view algorithm(std::size_t, DType = DType::f32) const override { return "mpi"; }
  Seconds now() const override;

 private:
  /// A collective is cut into pieces of so many bytes, of which several are under way at once. MPI
  /// counts elements in an int; and Open MPI 4.1 carries out a large non-blocking all-reduce in few
  /// large rounds, in which it adds nothing while data travel. Pieces overlap the two. Measured
  /// with 2 and 4 ranks on 2 cores, 8 MiB: 3.5 and 7.3 ms as a whole, 2.0 and 5.7 ms in pieces of
  /// 256 KiB, 2.3 and 5.7 ms by the blocking MPI_Allreduce. Between 256 KiB and 1 MiB pieces hardly
  /// differ.
  static constexpr std::int64_t piece_bytes = 512 * 1024;
  static constexpr std::int64_t pieces_at_once = 8;

  /// Where the call at the front is.
  enum class Phase {
    agreeing,   // is it the same on all ranks?
    comparing,  // it is not: who called what?
    moving,     // it is: the elements are under way
  };

  /// What MPI reads and writes in the background, beside the buffers themselves.
  struct Memory {
    std::array<std::uint64_t, 2> hashes{};  // of the front call's header: {hash, ~hash}
    std::vector<CallHeader> headers;        // of all ranks
    Tensor moving;                          // the front call's buffer, or that in f32
  };

  /// What is known of a rank from its notes.
  struct Peer {
    std::uint64_t begun = 0;                 // it was in call number begun - 1
    std::optional<std::uint64_t> left = {};  // after so many calls
  };

  void check_running() const;
  Work enqueue(const CollectiveCall& call, std::string_view name) override;
  void begin(Call& call) override;  // agreeing
  Progress carry_on(Call& call) override;
  Progress take_turn(Call& call);
  bool progress(std::uint64_t sequence) override;
  void relax(unsigned round, bool late) override;
  void look_again_or_time_out(Seconds limit) override;
  void tell_failure(std::string_view reason, bool consequence) noexcept override;

  void start_comparing(const CallHeader& mine);
  [[noreturn]] void compare_headers(const CallHeader& mine);
  void start_moving(const Call& call);
  bool move_pieces(const Call& call);
  void start_piece(const CallHeader& header, std::int64_t number);
  std::int64_t piece_elements() const {
    return piece_bytes / static_cast<std::int64_t>(size_of(memory_->moving.dtype()));
  }
  void complete(Call& call);

  /// Reads the notes of the other ranks. Throws PeerError if one has given up, or has left before
  /// the call at the front; `tell` says to tell them where this rank is.
  void look_around(bool tell);

  MPI_Comm comm_;
  int rank_ = 0, size_;
  Backoff backoff_;

  Phase phase_ = Phase::agreeing;
  std::unique_ptr<Memory> memory_ = std::make_unique<Memory>();
  std::array<MPI_Request, pieces_at_once> requests_;
  std::int64_t started_ = 0, ended_ = 0, pieces_ = 0;  // of the front call

  std::vector<Peer> peers_;
  bool told_ = false;  // the others know that this rank is in the front call
  unsigned fruitless_ = 0;
};

}  // namespace lockstep::dist
