#pragma once
/// The communicator over MPI's own collectives, for tensors in host memory.
///
/// A call has two parts. First the ranks agree that they all make the same one: an all-reduce of
/// the hash of its CallHeader. Only if they do is MPI asked for anything that depends on the
/// arguments; if not, they exchange the headers, and every rank throws the first difference that
/// it sees.
/// That is all of a barrier. The other operations move the elements then, in pieces:
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
/// Level of determinism: run. MPI chooses how it adds, by size and number of ranks; all ranks get
/// the same bits.
///
/// Whose fault: MPI's collectives do not say whom they wait for. So a rank that has waited for half
/// its timeout tells the others in which call it is, and so does every rank that hears of it while
/// it waits. Whoever is silent is missing.

#include <mpi.h>

#include <array>
#include <exception>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "lockstep/dist/collectives/communicator.h"
#include "lockstep/dist/collectives/flight_recorder.h"
#include "lockstep/dist/mpi/mpi_notes.h"
#include "lockstep/dist/transport/backoff.h"

namespace lockstep::dist {

class MpiCommunicator final : public Communicator {
 public:
  static constexpr std::size_t queue_length = 256;

  /// Takes `comm` for itself, and never frees it: MPI_Comm_free is collective, and this object may
  /// end on one rank alone. The communicators of a program are few.
  MpiCommunicator(MPI_Comm comm, Seconds timeout, std::size_t piece_bytes);
  ~MpiCommunicator() override;
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Work all_reduce(const Tensor& data, std::string_view name) override;
  Work reduce_scatter(const Tensor& input, const Tensor& output, std::string_view name) override;
  Work all_gather(const Tensor& input, const Tensor& output, std::string_view name) override;
  Work broadcast(const Tensor& data, int root, std::string_view name) override;
  Work barrier(std::string_view name) override;
  Tensor allocate(std::int64_t numel, DType dtype, Device device = {}) override;

  void abort(std::string_view reason) noexcept override;
  std::string_view algorithm(std::size_t, DType = DType::f32) const override { return "mpi"; }

  Seconds now() const override;
  Seconds waited() const override { return linked_ ? waited_ + linked_->waited() : waited_; }

  std::string flight_record() const override { return recorder_.text(now()); }

  bool progress(std::uint64_t sequence) override;
  void wait(std::uint64_t sequence, std::optional<Seconds> timeout) override;
  std::exception_ptr failure(std::uint64_t sequence) const override;

 private:
  static constexpr std::int64_t pieces_at_once = 8;

  struct Call {
    CallHeader header;
    Tensor buffer, part;  // as in dist/collectives/plan.h
    std::array<char, 48> name{};
  };

  /// Where the call at the front is.
  enum class Phase {
    waiting,    // not begun
    agreeing,   // is it the same on all ranks?
    comparing,  // it is not: who called what?
    moving,     // it is: the elements are on their way
  };

  /// What MPI reads and writes in the background, beside the buffers themselves.
  struct Memory {
    std::array<std::uint64_t, 2> hashes{};  // of the front call's header: {hash, ~hash}
    std::vector<CallHeader> headers;        // everybody's
    Tensor moving;                          // the front call's buffer, or that in f32
  };

  /// What is known of a rank from its notes.
  struct Peer {
    std::uint64_t begun = 0;                 // it was in call number begun - 1
    std::optional<std::uint64_t> left = {};  // after so many calls
  };

  Work enqueue(Operation operation, const Tensor& buffer, const Tensor& part, int root,
               std::string_view name);
  Call& call(std::uint64_t sequence) { return queue_[sequence % queue_length]; }
  Call& front() { return call(front_); }

  /// Carries on with the calls in the queue; true if anything moved. Throws if that fails.
  bool advance();
  /// The same for the call at the front.
  bool advance_front();
  void start_agreeing();
  void start_comparing();
  [[noreturn]] void compare_signatures();
  void start_moving();
  bool move_pieces();
  void start_piece(std::int64_t index);
  std::int64_t piece_elements(DType dtype) const {
    return static_cast<std::int64_t>(piece_bytes_ / size_of(dtype));
  }
  using Communicator::finish;
  void finish();

  /// Reads the notes of the other ranks. Throws PeerError if one has given up, or has left before
  /// the call at the front; `tell` says to tell them where this rank is.
  void look_around(bool tell);
  [[noreturn]] void time_out(Seconds limit);
  /// Breaks the communicator and throws: this rank's own error, of which it tells the others, or
  /// the `echo` of another's.
  [[noreturn]] void give_up(bool echo, std::string_view why);

  MPI_Comm comm_;
  int rank_ = 0, size_ = 1;
  Seconds timeout_;
  std::size_t piece_bytes_;
  Backoff backoff_;
  MpiNotes notes_;
  FlightRecorder recorder_;
  std::vector<Call> queue_;
  std::uint64_t front_ = 0;  // the call being carried out: all before it are done
  std::uint64_t next_ = 0;   // the number of the next call

  Phase phase_ = Phase::waiting;
  std::unique_ptr<Memory> memory_ = std::make_unique<Memory>();
  std::array<MPI_Request, pieces_at_once> requests_;
  std::int64_t started_ = 0, ended_ = 0, pieces_ = 0;  // of the front call

  std::vector<Peer> peers_;
  bool told_ = false;  // the others know that this rank is in the front call
  unsigned fruitless_ = 0;
  Seconds waited_{0};
  std::exception_ptr failure_;
};

}  // namespace lockstep::dist
