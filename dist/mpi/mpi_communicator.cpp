#include "lockstep/dist/mpi/mpi_communicator.h"

#include <algorithm>
#include <cstring>

#include "lockstep/core/hash.h"
#include "lockstep/dist/mpi/mpi_process.h"
#include "lockstep/kernels/elementwise.h"

namespace lockstep::dist {
namespace {

MPI_Datatype mpi_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return MPI_FLOAT;
    case DType::f64: return MPI_DOUBLE;
    case DType::i32: return MPI_INT32_T;
    case DType::i64: return MPI_INT64_T;
    default: return MPI_BYTE;  // moved, never added
  }
}

/// Whether each rank's part travels in separate pieces.
bool by_parts(Operation operation) {
  return operation == Operation::reduce_scatter || operation == Operation::all_gather;
}

}  // namespace

MpiCommunicator::MpiCommunicator(MPI_Comm comm, Seconds timeout, std::vector<int> members)
    : QueuedCommunicator(ranks_of(comm),
                         WaitWatch(timeout, Seconds(0.1), nullptr, std::move(members))),
      comm_(comm),
      size_(ranks_of(comm)),
      backoff_(MpiProcess::get().ranks_here()),
      peers_(index(size_)) {
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  memory_->headers.resize(index(size_));
  requests_.fill(MPI_REQUEST_NULL);
  MpiProcess::get().communicator_made();
}

MpiCommunicator::~MpiCommunicator() {
  MpiProcess::get().communicator_gone();
  try {
    check_running();
    advance();  // calls without a wait() may have ended
    tell_all(comm_, {.kind = MpiNote::Kind::leaves, .calls = front_});
    if (front_ == next_) return;
    MpiProcess::get().failed();
  } catch (const std::exception&) {
    // The others have been told.
  }
  // MPI does not cancel collectives: what it may still write to is never freed.
  static_cast<void>(memory_.release());
}

/// The program may finalize MPI before its World ends. No call of MPI is allowed after that.
void MpiCommunicator::check_running() const {
  check<StateError>(!mpi_finalized(),
                    "[mpi] MPI_Finalize was called before the end of the World: no collective is "
                    "possible any more");
}

Work MpiCommunicator::enqueue(const CollectiveCall& call, std::string_view name) {
  check_running();
  check_on_host(call, name);
  return append(call, name, Algorithm::automatic);  // MPI chooses
}

Tensor MpiCommunicator::allocate(std::int64_t numel, DType dtype, Device) {
  if (failure_) std::rethrow_exception(failure_);
  return Tensor::zeros({numel}, dtype);
}

// ---- carrying them out ----

// What has ended may let something else begin at once.
QueuedCommunicator::Progress MpiCommunicator::carry_on(Call& call) {
  check_running();
  Progress progress = Progress::none, next;
  while ((next = take_turn(call)) != Progress::none) {
    progress = next;
    if (next == Progress::ended) break;
  }
  return progress;
}

QueuedCommunicator::Progress MpiCommunicator::take_turn(Call& call) {
  if (phase_ != Phase::moving && !is_done(requests_[0])) return Progress::none;
  switch (phase_) {
    case Phase::agreeing:
      if (memory_->hashes[0] == ~memory_->hashes[1])
        start_moving(call);
      else
        start_comparing(call.header);
      return Progress::some;
    case Phase::comparing: compare_headers(call.header);
    case Phase::moving: break;
  }
  const bool moved = move_pieces(call);
  if (ended_ < pieces_) return moved ? Progress::some : Progress::none;
  complete(call);
  return Progress::ended;
}

// All hashes are equal if the largest complement is the complement of the largest hash.
void MpiCommunicator::begin(Call& call) {
  check_running();
  std::array<char, sizeof call.header> bytes;
  std::memcpy(bytes.data(), &call.header, sizeof call.header);
  const std::uint64_t hash = fnv1a({bytes.data(), bytes.size()});
  memory_->hashes = {hash, ~hash};
  check_mpi(MPI_Iallreduce(MPI_IN_PLACE, memory_->hashes.data(), 2, MPI_UINT64_T, MPI_MAX, comm_,
                           &requests_[0]),
            "MPI_Iallreduce");
  phase_ = Phase::agreeing;
}

void MpiCommunicator::start_comparing(const CallHeader& mine) {
  memory_->headers[index(rank_)] = mine;
  check_mpi(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, memory_->headers.data(),
                           sizeof(CallHeader), MPI_BYTE, comm_, &requests_[0]),
            "MPI_Iallgather");
  phase_ = Phase::comparing;
}

void MpiCommunicator::compare_headers(const CallHeader& mine) {
  for (int peer = 0; peer < size_; ++peer) compare(mine, memory_->headers[index(peer)], peer);
  fail<CommError>("the ranks' calls have one header, but hashes that differ");
}

void MpiCommunicator::start_moving(const Call& call) {
  const Tensor &buffer = call.arguments.buffer, &part = call.arguments.part;
  const Operation operation = call.header.operation;
  for (int peer = 0; peer < size_; ++peer) recorder_.heard(peer, call.header);
  memory_->moving = buffer;
  if (adds_16_bit(operation, buffer.dtype())) {
    memory_->moving = Tensor::empty(buffer.shape());
    kernels::cast(buffer, memory_->moving);
  }
  phase_ = Phase::moving;  // if memory is short, this rank is still agreeing
  started_ = ended_ = 0;
  const std::int64_t piece = piece_elements();
  const int parts = by_parts(operation) ? size_ : 1;
  const std::int64_t largest_part = partition(call.header.count, parts, 0).size();
  pieces_ = operation == Operation::barrier ? 0 : (largest_part + piece - 1) / piece * parts;
  if (operation == Operation::all_gather && part.bytes() > 0)
    std::memmove(part_of(buffer, size_, rank_).data(), part.raw(), part.bytes());
}

bool MpiCommunicator::move_pieces(const Call& call) {
  bool moved = false;
  for (; started_ < pieces_ && started_ - ended_ < pieces_at_once; ++started_, moved = true)
    start_piece(call.header, started_);
  for (; ended_ < started_ && is_done(requests_[static_cast<std::size_t>(ended_ % pieces_at_once)]);
       ++ended_)
    moved = true;
  return moved;
}

void MpiCommunicator::start_piece(const CallHeader& header, std::int64_t number) {
  const std::size_t width = size_of(memory_->moving.dtype());
  const std::int64_t piece = piece_elements();
  const int parts = by_parts(header.operation) ? size_ : 1;
  const int owner = static_cast<int>(number % parts);
  const Range part = partition(header.count, parts, owner);
  const std::int64_t begin = part.begin + number / parts * piece;
  const std::int64_t elements = std::min(piece, part.end - begin);
  if (elements <= 0) return;  // a part is smaller than the largest; its request is null, and done

  std::byte* const data = memory_->moving.raw() + static_cast<std::size_t>(begin) * width;
  const auto n = static_cast<int>(elements);
  const auto bytes = static_cast<int>(static_cast<std::size_t>(elements) * width);
  const MPI_Datatype type = mpi_type(memory_->moving.dtype());
  MPI_Request* const request = &requests_[static_cast<std::size_t>(number % pieces_at_once)];
  switch (header.operation) {
    case Operation::all_reduce:
      check_mpi(MPI_Iallreduce(MPI_IN_PLACE, data, n, type, MPI_SUM, comm_, request),
                "MPI_Iallreduce");
      break;
    case Operation::reduce_scatter:
      check_mpi(MPI_Ireduce(owner == rank_ ? MPI_IN_PLACE : data, data, n, type, MPI_SUM, owner,
                            comm_, request),
                "MPI_Ireduce");
      break;
    case Operation::all_gather:
    case Operation::broadcast:
      check_mpi(MPI_Ibcast(data, bytes, MPI_BYTE, by_parts(header.operation) ? owner : header.root,
                           comm_, request),
                "MPI_Ibcast");
      break;
    case Operation::barrier: break;
  }
}

void MpiCommunicator::complete(Call& call) {
  const Tensor &buffer = call.arguments.buffer, &part = call.arguments.part;
  const Operation operation = call.header.operation;
  if (adds_16_bit(operation, buffer.dtype())) kernels::cast(memory_->moving, buffer);
  if (operation == Operation::reduce_scatter && part.bytes() > 0)
    std::memmove(part.raw(), part_of(buffer, size_, rank_).data(), part.bytes());
  memory_->moving = Tensor();
  told_ = false;
}

bool MpiCommunicator::progress(std::uint64_t sequence) {
  constexpr unsigned patience = 64;  // calls without progress before it reads the notes
  const std::uint64_t before = front_;
  if (QueuedCommunicator::progress(sequence)) return true;
  if (front_ == before && ++fruitless_ % patience == 0) look_around(false);
  return false;
}

void MpiCommunicator::relax(unsigned round, bool late) {
  if (backoff_.relax(round)) look_around(late);
}

Seconds MpiCommunicator::now() const { return std::chrono::steady_clock::now().time_since_epoch(); }

// ---- when something is wrong ----

void MpiCommunicator::look_around(bool tell) {
  if (front_ == next_ || phase_ == Phase::comparing) return;  // all ranks are about to know
  while (const std::optional<MpiNote> note = next_note(comm_)) {
    Peer& peer = peers_[index(note->from)];
    switch (note->kind) {
      case MpiNote::Kind::waits:
        peer.begun = note->header.sequence + 1;
        recorder_.heard(note->from, note->header);
        break;
      case MpiNote::Kind::leaves: peer.left = note->calls; break;
      case MpiNote::Kind::gave_up: give_up(PeerError(note->reason()));
    }
  }
  for (int peer = 0; peer < size_; ++peer) {
    const Peer& known = peers_[index(peer)];
    if (known.left && *known.left <= front_)
      give_up(PeerError(fmt::format("rank {} left after {} call{}", peer, *known.left,
                                    *known.left == 1 ? "" : "s")));
    tell = tell || known.begun > front_;
  }
  if (!tell || told_) return;
  told_ = true;
  tell_all(comm_, {.kind = MpiNote::Kind::waits, .header = front().header});
}

void MpiCommunicator::look_again_or_time_out(Seconds limit) {
  const std::string late = fmt::format("timed out after {:g} s, ", limit.count());
  const std::string position = phase_ == Phase::moving
                                   ? fmt::format("piece {} of {}", ended_ + 1, pieces_)
                                   : "agreeing on the call";
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_ && peers_[index(peer)].begun <= front_)
      throw CommError(late + fmt::format("waiting for rank {} ({}); {}", peer, position,
                                         recorder_.last_seen(peer)));
  throw CommError(late + fmt::format("though every rank is in this call ({})", position));
}

void MpiCommunicator::tell_failure(std::string_view reason, bool consequence) noexcept {
  MpiProcess::get().failed();
  if (!consequence && !mpi_finalized())
    tell_all(comm_, MpiNote::gave_up(reason));  // else all have been told
}

}  // namespace lockstep::dist
