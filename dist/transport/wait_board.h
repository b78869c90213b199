#pragma once
/// What the ranks of a job tell each other once they wait for long: whom each waits for. A rank
/// that times out follows these notes to the rank that waits for no other, and names that one.
///
///   rank 0 waits for 3      rank 3 waits for 2      rank 2 says nothing: it is the one
///
/// A job has one board, which its groups share, because a rank of a group may wait in another
/// communicator than the ranks that wait for it. Ranks have the numbers of the job: of the first
/// world. Notes must arrive although the rank that is looked for takes nothing more from any
/// stream. Therefore they have their own memory, or their own connections.
///
/// Thread-safety: one WaitBoard belongs to one rank and is used by one thread at a time.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lockstep/dist/rendezvous/rendezvous.h"
#include "lockstep/dist/transport/transport.h"

namespace lockstep::dist {

struct WaitNote {
  enum class Kind : std::uint32_t {
    none,       ///< it does not wait for long
    waits,      ///< for `rank`
    timed_out,  ///< and found that `rank` does not move
    works,      ///< it works alone, and others wait for that (pulse.h)
  };
  Kind kind = Kind::none;
  std::int32_t rank = -1;
  std::uint64_t beat = 0;        ///< grows with each note of a rank: one that waits is alive
  std::array<char, 112> call{};  ///< in which it waits: "all_reduce #5 'bucket 0'"

  std::string call_text() const { return text_of_peer({call.data(), call.size()}); }
};
static_assert(std::is_trivially_copyable_v<WaitNote> && sizeof(WaitNote) == 128);

class WaitBoard {
 public:
  WaitBoard(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~WaitBoard() = default;
  WaitBoard(const WaitBoard&) = delete;
  WaitBoard& operator=(const WaitBoard&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Replaces this rank's note. Best effort; does not wait.
  void tell(WaitNote::Kind kind, int rank, std::string_view call) noexcept;
  /// This rank waits no longer.
  void withdraw() noexcept {
    if (mine_.kind != WaitNote::Kind::none) tell(WaitNote::Kind::none, -1, "");
  }
  /// The newest note of this rank that has arrived. Does not wait.
  virtual WaitNote of(int rank) noexcept = 0;

 private:
  virtual void publish(const WaitNote& note) noexcept = 0;

  int rank_, size_;
  WaitNote mine_;
};

/// For ranks that are threads, or simulated: one board per rank.
std::vector<std::shared_ptr<WaitBoard>> threads_wait_boards(int size);
/// For processes of one machine, in shared memory. Collective; errors as shm_transport.
std::shared_ptr<WaitBoard> shm_wait_board(Rendezvous& rendezvous);
/// For processes anywhere, over its own connections. Collective; errors as tcp_transport.
std::shared_ptr<WaitBoard> tcp_wait_board(Rendezvous& rendezvous);

/// The board in a region that all ranks address, zeroed at first.
std::shared_ptr<WaitBoard> memory_wait_board(SharedRegion region, int rank);
/// Bytes of each rank's part of that region.
constexpr std::size_t wait_board_bytes = sizeof(WaitNote) + 64;

}  // namespace lockstep::dist
