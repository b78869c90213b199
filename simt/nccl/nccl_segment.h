#pragma once
/// What the ranks of a simulated NCCL communicator have in common, in shared memory: a table of who
/// they are, and a channel from each rank to each other one and to itself.
///
/// A channel is a queue of at most two chunks with one sender and one receiver. There are no locks
/// in shared memory: a rank that is killed holds up the ranks that need its chunks, and no others.

#include <atomic>
#include <cstdint>
#include <optional>

#include "lockstep/simt/runtime/shared_file.h"

namespace simt::detail {

class Channel {
 public:
  static constexpr std::size_t chunk_bytes = 128 << 10, chunks = 2;

  /// Where the next chunk is to be written; null: the receiver has not read the one before.
  std::byte* room() {
    return sent_ - received_.load(std::memory_order_acquire) < chunks ? chunk(sent_) : nullptr;
  }
  void send() { sent_.fetch_add(1, std::memory_order_release); }

  /// The receiver has taken all that was sent.
  bool empty() const { return received_.load(std::memory_order_acquire) == sent_; }

  /// The oldest chunk that has not been taken; null: there is none.
  const std::byte* front() {
    return received_ < sent_.load(std::memory_order_acquire) ? chunk(received_) : nullptr;
  }
  void take() { received_.fetch_add(1, std::memory_order_release); }

 private:
  std::byte* chunk(std::uint64_t number) { return data_ + number % chunks * chunk_bytes; }

  alignas(64) std::atomic<std::uint64_t> sent_;
  alignas(64) std::atomic<std::uint64_t> received_;
  alignas(64) std::byte data_[chunks * chunk_bytes];
};

/// The table's entry of a rank.
struct Seat {
  std::atomic<bool> taken;
  int device;
  std::uint64_t host;  ///< a hash of NCCL_HOSTID: two ranks on one GPU of one host are refused
  std::atomic<bool> finalized;
};

/// All zero at first.
struct Table {
  static constexpr int most_ranks = 16;

  std::atomic<int> size;       ///< that the first rank to come said
  std::atomic<int> joined;     ///< how many ranks have filled their seats
  std::atomic<int> finalized;  ///< how many ranks have called ncclCommFinalize
  std::atomic<bool> failed;    ///< some rank has seen a system error
  Seat seats[most_ranks];
};

class Segment {
 public:
  /// Of any number of ranks: memory is used where it is written only.
  static SharedFile create_file();

  Segment(const SharedFile& file, int size);
  Segment(Segment&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();

  Table& table() const { return *reinterpret_cast<Table*>(data_); }
  Channel& channel(int from, int to) const;

 private:
  static std::size_t bytes(int size);

  std::byte* data_;
  int size_;
};

}  // namespace simt::detail
