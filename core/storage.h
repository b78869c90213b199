#pragma once
/// A counted reference to a block of memory. Copying shares the block; the last reference frees it.
/// The count is atomic, so references may be copied in different threads; the bytes are not
/// guarded. On the cpu the count lies in front of the bytes in one block of the caching allocator,
/// so that making a tensor in a steady training step allocates nothing. A GPU's memory comes from
/// its pool, in the order of the stream that was current at the time (stream.h), and returns there.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "lockstep/core/device.h"
#include "lockstep/core/gpu/stream.h"
#include "lockstep/core/lanes/row_origin.h"

namespace lockstep {

class Storage {
 public:
  Storage() = default;  ///< no memory

  /// `bytes` bytes of the device's memory, aligned to 64, contents undefined; 0 bytes are allowed.
  /// Throws DeviceError for a device that this build or this machine does not have, or whose memory
  /// is used up; MemoryError when the host's is.
  static Storage allocate(std::size_t bytes, Device device = {});

  /// Refers to memory owned elsewhere (bucket memory of a communicator, a mapped file), which must
  /// stay valid until `release` is called. That happens once, in the thread that drops the last
  /// reference; `release` may be empty, and must not throw.
  static Storage adopt(void* data, std::size_t bytes, std::function<void()> release,
                       Device device = {});

  Storage(const Storage& other) noexcept : block_(other.block_) {
    if (block_) block_->references.fetch_add(1, std::memory_order_relaxed);
  }
  Storage(Storage&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  Storage& operator=(Storage other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~Storage() {
    if (block_ && block_->references.fetch_sub(1, std::memory_order_acq_rel) == 1) destroy(block_);
  }

  /// Whether there is memory. If there is none, the functions below throw StateError.
  explicit operator bool() const { return block_ != nullptr; }
  std::byte* data() const {  ///< in the device's memory
    if (block().stream) note_use(*block_);
    return block_->data;
  }
  std::size_t bytes() const { return block().bytes; }
  Device device() const { return {block().device_kind, block().device_index}; }
  /// How often the bytes were changed in place, as far as Tensor's functions and the optimizers
  /// know (changed()). Wraps around.
  std::uint32_t version() const { return block().version.load(std::memory_order_relaxed); }
  void changed() const { block_->version.fetch_add(1, std::memory_order_relaxed); }
  /// What its rows are made of; at first of no samples.
  RowOrigin origin() const { return RowOrigin(block().origin.load(std::memory_order_relaxed)); }
  void set_origin(RowOrigin origin) const {
    block().origin.store(origin.id_, std::memory_order_relaxed);
  }
  /// How many refer to the block.
  int references() const { return block().references.load(std::memory_order_acquire); }
  /// Whether both refer to the same block: what is known of the rows of one is known of the rows of
  /// the other.
  bool operator==(const Storage& other) const { return block_ == other.block_; }
  /// True if this is the only reference: no other Storage can see a write.
  bool unique() const { return block().references.load(std::memory_order_acquire) == 1; }
  /// Whether its memory was made in a step whose recording failed (core/gpu/graph.h), so that
  /// nothing was ever there: data() throws StateError.
  bool lost() const { return block_ && !block_->data && block_->bytes > 0; }

  /// For core/ alone.
  struct Block {
    Block(std::byte* memory, std::size_t size, Device device)
        : data(memory), bytes(size), device_kind(device.kind), device_index(device.index) {}
    std::atomic<int> references = 1;
    std::atomic<std::uint32_t> version = 0;
    std::byte* data;
    std::size_t bytes;
    Device::Kind device_kind;
    std::atomic<std::uint16_t> origin = 0;
    int device_index;
    std::function<void()>* release = nullptr;  // null: not adopted
    std::optional<Stream> stream{};  // of memory on a GPU; else `data` follows this header
  };

 private:
  explicit Storage(Block* block) : block_(block) {}
  static void destroy(Block* block) noexcept;
  static void note_use(const Block& block);
  Block& block() const {
    check<StateError>(block_ != nullptr, "[storage] an empty storage has no memory");
    return *block_;
  }

  Block* block_ = nullptr;
};

}  // namespace lockstep
