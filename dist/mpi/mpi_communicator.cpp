#include "lockstep/dist/mpi/mpi_communicator.h"

#include <algorithm>
#include <cstring>

#include "lockstep/core/hash.h"
#include "lockstep/dist/collectives/call_checks.h"
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

/// Whether the elements of every rank's part travel apart from those of the others.
bool by_parts(Operation operation) {
  return operation == Operation::reduce_scatter || operation == Operation::all_gather;
}

/// Whether MPI would have to add elements that it does not know.
bool sums_narrow(const CallHeader& header) {
  const bool sums =
      header.operation == Operation::all_reduce || header.operation == Operation::reduce_scatter;
  return sums && size_of(header.dtype) == 2;
}

/// As what its elements travel.
DType travelling(const CallHeader& header) {
  return sums_narrow(header) ? DType::f32 : header.dtype;
}

/// Where this rank's part of the elements begins, whatever the buffer's shape.
std::byte* own_part(const Tensor& buffer, int size, int rank) {
  const Range own = partition(buffer.numel(), size, rank);
  return buffer.raw() + static_cast<std::size_t>(own.begin) * size_of(buffer.dtype());
}

bool is_done(MPI_Request& request) {
  int done = 0;
  check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
  return done != 0;
}

}  // namespace

MpiCommunicator::MpiCommunicator(MPI_Comm comm, Seconds timeout, std::size_t piece_bytes)
    : comm_(comm),
      timeout_(timeout),
      piece_bytes_(std::clamp<std::size_t>(piece_bytes, 8, std::size_t{1} << 30)),  // an int
      backoff_(MpiProcess::get().ranks_here()),
      notes_(comm),
      recorder_([comm] {
        int size = 0;
        check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
        return size;
      }()),
      queue_(queue_length) {
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  memory_->headers.resize(index(size_));
  peers_.resize(index(size_));
  requests_.fill(MPI_REQUEST_NULL);
  MpiProcess::get().communicator_made();
}

MpiCommunicator::~MpiCommunicator() {
  MpiProcess::get().communicator_gone();
  try {
    advance();  // what nobody has waited for may have ended
    notes_.tell_all(MpiNote::leaves(front_));
    if (front_ == next_) return;
    MpiProcess::get().failed();
  } catch (const std::exception&) {
    // The others have been told.
  }
  // MPI does not cancel collectives: what it may still write to is never freed.
  static_cast<void>(memory_.release());
}

// ---- calls ----

Work MpiCommunicator::all_reduce(const Tensor& data, std::string_view name) {
  check_all_reduce(data, name);
  return enqueue(Operation::all_reduce, data, {}, 0, name);
}

Work MpiCommunicator::reduce_scatter(const Tensor& input, const Tensor& output,
                                     std::string_view name) {
  check_reduce_scatter(input, output, rank_, size_, name);
  return enqueue(Operation::reduce_scatter, input, output, 0, name);
}

Work MpiCommunicator::all_gather(const Tensor& input, const Tensor& output, std::string_view name) {
  check_all_gather(input, output, rank_, size_, name);
  return enqueue(Operation::all_gather, output, input, 0, name);
}

Work MpiCommunicator::broadcast(const Tensor& data, int root, std::string_view name) {
  check_broadcast(root, size_, name);
  return enqueue(Operation::broadcast, data, {}, root, name);
}

Work MpiCommunicator::barrier(std::string_view name) {
  return enqueue(Operation::barrier, {}, {}, 0, name);
}

Work MpiCommunicator::enqueue(Operation operation, const Tensor& buffer, const Tensor& part,
                              int root, std::string_view name) {
  check_on_host(operation, buffer, name);
  check_on_host(operation, part, name);
  if (failure_) return Work(this, next_);
  if (next_ - front_ == queue_length) wait(front_, {});

  Call& call = this->call(next_);
  call = Call{{}, buffer, part, {}};
  std::copy_n(name.begin(), std::min(name.size(), call.name.size() - 1), call.name.begin());
  CallHeader& header = call.header;
  header.operation = operation;
  header.algorithm = Algorithm::automatic;  // MPI's choice
  header.dtype = buffer.dtype();
  header.root = root;
  header.sequence = next_;
  header.count = buffer.numel();
  header.set_name(name);

  recorder_.called(header, now());
  const Work work(this, next_++);
  try {
    advance();
  } catch (const CommError&) {
    // Kept in failure_: the Work throws it.
  }
  return work;
}

Tensor MpiCommunicator::allocate(std::int64_t numel, DType dtype, Device) {
  if (failure_) std::rethrow_exception(failure_);
  return Tensor::zeros({numel}, dtype);
}

// ---- carrying them out ----

bool MpiCommunicator::advance() {
  if (failure_) std::rethrow_exception(failure_);
  bool moved = false;
  try {
    while (front_ < next_ && advance_front()) moved = true;
  } catch (const CommError& error) {
    give_up(false, error.what());
  }
  return moved;
}

bool MpiCommunicator::advance_front() {
  switch (phase_) {
    case Phase::waiting: start_agreeing(); return true;
    case Phase::agreeing:
      if (!is_done(requests_[0])) return false;
      if (memory_->hashes[0] == ~memory_->hashes[1])
        start_moving();
      else
        start_comparing();
      return true;
    case Phase::comparing:
      if (!is_done(requests_[0])) return false;
      compare_signatures();
    case Phase::moving:
      const bool moved = move_pieces();
      if (ended_ < pieces_) return moved;
      finish();
      return true;
  }
  return false;
}

// The largest hash is the smallest one, too, if the largest complement is its complement.
void MpiCommunicator::start_agreeing() {
  const CallHeader& header = front().header;
  std::array<char, sizeof header> bytes;
  std::memcpy(bytes.data(), &header, sizeof header);
  const std::uint64_t hash = fnv1a({bytes.data(), bytes.size()});
  memory_->hashes = {hash, ~hash};
  check_mpi(MPI_Iallreduce(MPI_IN_PLACE, memory_->hashes.data(), 2, MPI_UINT64_T, MPI_MAX, comm_,
                           &requests_[0]),
            "MPI_Iallreduce");
  phase_ = Phase::agreeing;
}

void MpiCommunicator::start_comparing() {
  memory_->headers[index(rank_)] = front().header;
  check_mpi(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, memory_->headers.data(),
                           sizeof(CallHeader), MPI_BYTE, comm_, &requests_[0]),
            "MPI_Iallgather");
  phase_ = Phase::comparing;
}

void MpiCommunicator::compare_signatures() {
  for (int peer = 0; peer < size_; ++peer)
    compare(front().header, memory_->headers[index(peer)], peer);
  fail<CommError>("the ranks' calls have one header, but hashes that differ");
}

void MpiCommunicator::start_moving() {
  const Call& call = front();
  const Operation operation = call.header.operation;
  const std::int64_t count = call.header.count;
  const std::int64_t piece = piece_elements(travelling(call.header));
  const int parts = by_parts(operation) ? size_ : 1;
  const std::int64_t largest_part = partition(count, parts, 0).size();
  for (int peer = 0; peer < size_; ++peer) recorder_.heard(peer, call.header);
  memory_->moving = call.buffer;
  if (sums_narrow(call.header)) {
    memory_->moving = Tensor::empty(call.buffer.shape());
    kernels::cast(call.buffer, memory_->moving);
  }
  phase_ = Phase::moving;  // if memory is short, this rank is still agreeing
  started_ = ended_ = 0;
  pieces_ = operation == Operation::barrier ? 0 : (largest_part + piece - 1) / piece * parts;
  if (operation == Operation::all_gather && call.part.bytes() > 0)
    std::memmove(own_part(call.buffer, size_, rank_), call.part.raw(), call.part.bytes());
}

bool MpiCommunicator::move_pieces() {
  bool moved = false;
  for (; started_ < pieces_ && started_ - ended_ < pieces_at_once; ++started_, moved = true)
    start_piece(started_);
  for (; ended_ < started_ && is_done(requests_[static_cast<std::size_t>(ended_ % pieces_at_once)]);
       ++ended_)
    moved = true;
  return moved;
}

void MpiCommunicator::start_piece(std::int64_t number) {
  const CallHeader& header = front().header;
  const DType dtype = travelling(header);
  const std::size_t width = size_of(dtype);
  const std::int64_t piece = piece_elements(dtype);
  const int parts = by_parts(header.operation) ? size_ : 1;
  const int owner = static_cast<int>(number % parts);
  const Range part = partition(header.count, parts, owner);
  const std::int64_t begin = part.begin + number / parts * piece;
  const std::int64_t elements = std::min(piece, part.end - begin);
  if (elements <= 0) return;  // a part is smaller than the largest; its request is null, and done

  std::byte* const data = memory_->moving.raw() + static_cast<std::size_t>(begin) * width;
  const auto n = static_cast<int>(elements);
  const auto bytes = static_cast<int>(static_cast<std::size_t>(elements) * width);
  const MPI_Datatype type = mpi_type(dtype);
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
      check_mpi(MPI_Ibcast(data, bytes, MPI_BYTE, owner, comm_, request), "MPI_Ibcast");
      break;
    case Operation::broadcast:
      check_mpi(MPI_Ibcast(data, bytes, MPI_BYTE, header.root, comm_, request), "MPI_Ibcast");
      break;
    case Operation::barrier: break;
  }
}

void MpiCommunicator::finish() {
  Call& call = front();
  if (sums_narrow(call.header)) kernels::cast(memory_->moving, call.buffer);  // rounds once
  if (call.header.operation == Operation::reduce_scatter && call.part.bytes() > 0)
    std::memmove(call.part.raw(), own_part(call.buffer, size_, rank_), call.part.bytes());
  call.buffer = call.part = memory_->moving = Tensor();
  recorder_.finished(front_, now());
  phase_ = Phase::waiting;
  told_ = false;
  ++front_;
}

bool MpiCommunicator::progress(std::uint64_t sequence) {
  constexpr unsigned patience = 64;  // looks at the collective, for one at the notes
  if (sequence < front_) return true;
  if (!advance() && ++fruitless_ % patience == 0) look_around(false);
  return sequence < front_;
}

void MpiCommunicator::wait(std::uint64_t sequence, std::optional<Seconds> timeout) {
  if (sequence < front_) return;
  const Seconds limit = timeout.value_or(timeout_);
  const Seconds start = now();
  unsigned round = 0;
  Seconds idle_since{};
  while (sequence >= front_) {
    if (advance()) {
      round = 0;
      continue;
    }
    const Seconds time = now();
    if (round == 0) idle_since = time;
    if (time - idle_since > limit) time_out(limit);
    if (backoff_.relax(round++)) look_around(time - idle_since > limit / 2);
  }
  waited_ += now() - start;
}

std::exception_ptr MpiCommunicator::failure(std::uint64_t sequence) const {
  return sequence < front_ ? nullptr : failure_;
}

Seconds MpiCommunicator::now() const { return std::chrono::steady_clock::now().time_since_epoch(); }

// ---- when something is wrong ----

void MpiCommunicator::look_around(bool tell) {
  if (front_ == next_ || phase_ == Phase::comparing) return;  // everybody is about to know
  while (const std::optional<MpiNotes::Received> received = notes_.next()) {
    const MpiNote& note = received->note;
    Peer& peer = peers_[index(received->from)];
    switch (note.kind) {
      case MpiNote::Kind::waits:
        peer.begun = note.header.sequence + 1;
        recorder_.heard(received->from, note.header);
        break;
      case MpiNote::Kind::leaves: peer.left = note.calls; break;
      case MpiNote::Kind::gave_up: give_up(true, note.reason());
    }
  }
  for (int peer = 0; peer < size_; ++peer) {
    const Peer& known = peers_[index(peer)];
    if (known.left && *known.left <= front_)
      give_up(true, fmt::format("rank {} left after {} call{}", peer, *known.left,
                                *known.left == 1 ? "" : "s"));
    tell = tell || known.begun > front_;
  }
  if (!tell || told_) return;
  told_ = true;
  notes_.tell_all(MpiNote::waits(front().header));
}

void MpiCommunicator::time_out(Seconds limit) {
  const std::string position = phase_ == Phase::moving
                                   ? fmt::format("piece {} of {}", ended_ + 1, pieces_)
                                   : "agreeing on the call";
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_ && peers_[index(peer)].begun <= front_)
      give_up(false, fmt::format("timed out after {:g} s, waiting for rank {} ({}); {}",
                                 limit.count(), peer, position, recorder_.last_seen(peer)));
  give_up(false, fmt::format("timed out after {:g} s, though every rank is in this call ({})",
                             limit.count(), position));
}

void MpiCommunicator::give_up(bool echo, std::string_view why) {
  if (failure_) std::rethrow_exception(failure_);
  const Call& call = front();
  const std::string_view operation = name_of(call.header.operation);
  const std::string label = fmt::format("#{} '{}'", front_, call.name.data());
  const std::string message = fmt::format("[{}] rank {}, {}: {}", operation, rank_, label, why);
  const std::string reason =
      fmt::format("rank {} gave up in {} {}: {}", rank_, operation, label, why);
  failure_ = echo ? std::make_exception_ptr(PeerError(message))
                  : std::make_exception_ptr(CommError(message));
  MpiProcess::get().failed();
  if (!echo) notes_.tell_all(MpiNote::gave_up(reason));  // of an echo, all have been told
  if (linked_) linked_->abort(reason);
  std::rethrow_exception(failure_);
}

void MpiCommunicator::abort(std::string_view reason) noexcept {
  if (failure_) return;
  try {
    failure_ = std::make_exception_ptr(CommError(std::string(reason)));
  } catch (const std::bad_alloc&) {
    failure_ = std::current_exception();
  }
  MpiProcess::get().failed();
  notes_.tell_all(MpiNote::gave_up(reason));
  if (linked_) linked_->abort(reason);
}

}  // namespace lockstep::dist
