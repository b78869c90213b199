#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>

#include "lockstep/core/system/memory_limits.h"
#include "lockstep/dist/transport/memory_transport.h"
#include "lockstep/dist/transport/regions.h"
#include "lockstep/dist/transport/transports.h"
#include "lockstep/dist/transport/wait_board.h"

namespace lockstep::dist {
namespace {

double mib(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

/// Why there is no shared memory of so many bytes: the text of errno.
std::string memory_problem(std::size_t bytes) {
  return fmt::format("{:.1f} MiB of shared memory: {}", mib(bytes), system_message(errno));
}

/// Memory without a name, of a fixed size. If there is a `problem`, it must not be used. Too much
/// is refused here, because a page that the machine cannot give would kill the process that touches
/// it.
Descriptor make_memory(std::size_t bytes, std::string& problem) {
  struct rlimit files {};  // these hold for such memory, too; beyond them the system sends SIGXFSZ
  if (::getrlimit(RLIMIT_FSIZE, &files) == 0 && bytes > files.rlim_cur) {
    problem = fmt::format("{} bytes of shared memory: File too large (ulimit -f: {} bytes)", bytes,
                          files.rlim_cur);
    return {};
  }
  Descriptor memory(::memfd_create("lockstep", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const bool made = memory && ::ftruncate(memory.get(), static_cast<off_t>(bytes)) == 0 &&
                    ::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0;
  if (!made) problem = memory_problem(bytes);
  if (const auto available = memory_shortage(bytes))
    problem =
        fmt::format("{:.1f} MiB are needed, {:.1f} MiB are available", mib(bytes), mib(*available));
  return memory;
}

/// Gives every page its place in memory and in this process's page table, so that training meets no
/// page faults. Returns the problem if memory is short (a page fault would kill the process), else
/// an empty text.
std::string populate(std::byte* begin, std::size_t bytes) {
  // MADV_POPULATE_WRITE of Linux 5.14, by its number: the C library's headers may be older.
  constexpr int populate_write = 23;
  ::madvise(begin, bytes, MADV_HUGEPAGE);  // where the system allows it
  if (::madvise(begin, bytes, populate_write) == 0 || errno == EINVAL) return "";
  return memory_problem(bytes);
}

/// Throws on every rank if any rank has a problem.
void agree(Rendezvous& rendezvous, std::string_view what, const std::string& problem) {
  const std::vector<std::string> problems = rendezvous.all_gather(what, problem);
  for (std::size_t r = 0; r < problems.size(); ++r)
    check<CommError>(problems[r].empty(), "[{}] rank {}: {}", what, r, problems[r]);
}

/// Rank 0's memfd of `bytes` bytes, in every rank; the size of its parts must be the same on all.
Descriptor share_memfd(Rendezvous& rendezvous, std::string_view what, std::size_t part_bytes,
                       std::size_t bytes) {
  Descriptor memory;
  std::string problem;
  if (rendezvous.rank() == 0) memory = make_memory(bytes, problem);
  const std::vector<std::string> sizes = rendezvous.all_gather(what, std::to_string(part_bytes));
  for (std::size_t r = 0; r < sizes.size(); ++r)
    check<CommError>(sizes[r] == sizes[0], "[{}] rank 0 asks for {} bytes, rank {} for {}", what,
                     sizes[0], r, sizes[r]);
  agree(rendezvous, what, problem);
  memory = rendezvous.share_descriptor(what, std::move(memory));
  struct stat status {};
  check<CommError>(
      ::fstat(memory.get(), &status) == 0 && static_cast<std::size_t>(status.st_size) == bytes,
      "[{}] expected {} bytes of shared memory, got {}", what, bytes, status.st_size);
  return memory;
}

/// A region of all ranks. Collective. Every rank touches its own part first, so that the pages lie
/// near its core. Throws CommError, on every rank, if memory is short or sizes differ.
SharedRegion share_memory(Rendezvous& rendezvous, std::string_view what, std::size_t part_bytes) {
  const std::size_t stride = parts_apart(part_bytes, rendezvous.size()),
                    total = stride * index(rendezvous.size());
  const Descriptor memory = share_memfd(rendezvous, what, part_bytes, total);
  const std::shared_ptr<void> keeper = map_pages(total, MAP_SHARED, memory.get());
  auto* const begin = static_cast<std::byte*>(keeper.get());
  agree(rendezvous, what,
        keeper ? populate(begin + stride * index(rendezvous.rank()), stride)
               : fmt::format("mapping: {}", system_message(errno)));
  populate(begin, total);  // the others' parts too: all are there now
  return cut_into_parts(keeper, rendezvous.size(), part_bytes);
}

class ShmTransport final : public MemoryTransport {
 public:
  ShmTransport(std::shared_ptr<void> streams, std::shared_ptr<Rendezvous> rendezvous)
      : MemoryTransport(std::move(streams), rendezvous->rank(), rendezvous->size(),
                        stream_capacity(rendezvous->size())),
        rendezvous_(std::move(rendezvous)) {}
  // Before the rendezvous ends: else the others might take this rank for one that was killed.
  ~ShmTransport() override { presence_.set(rank(), Presence::left); }

  std::string_view name() const override { return "shm"; }
  SharedRegion allocate(std::size_t bytes) override {
    presence_.check_aborted();
    try {
      return share_memory(*rendezvous_, "allocate", bytes);
    } catch (const PeerError&) {
      presence_.check_aborted();  // who is missed may have left because it read the reason here
      throw;
    }
  }
  void abort(std::string_view reason) noexcept override {
    MemoryTransport::abort(reason);
    rendezvous_->abort(reason);  // reaches the ranks that wait in allocate()
  }

 private:
  void look_for_gone_ranks() override {
    if (now() < next_look_) return;
    next_look_ = now() + std::chrono::milliseconds(2);
    for (int peer = 0; peer < size(); ++peer)  // we could receive what it sent since the last look
      if (presence_.of(peer) == Presence::gone) presence_.fail_without(peer);
    for (const int peer : rendezvous_->gone()) presence_.set(peer, Presence::gone);
  }

  std::shared_ptr<Rendezvous> rendezvous_;
  Seconds next_look_{0};
};

}  // namespace

std::unique_ptr<Transport> shm_transport(std::shared_ptr<Rendezvous> rendezvous) {
  const int size = rendezvous->size();
  const std::size_t bytes = MemoryTransport::bytes_needed(size, stream_capacity(size));
  const std::size_t part = (bytes + index(size) - 1) / index(size);
  const SharedRegion streams = share_memory(*rendezvous, "shared memory", part);
  return std::make_unique<ShmTransport>(streams.keeper, std::move(rendezvous));
}

std::shared_ptr<WaitBoard> shm_wait_board(Rendezvous& rendezvous) {
  return memory_wait_board(share_memory(rendezvous, "wait board", wait_board_bytes),
                           rendezvous.rank());
}

}  // namespace lockstep::dist
