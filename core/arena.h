#pragma once
/// Memory that is given back all at once: what a tape records in. It comes in chunks from the
/// caching allocator, so a training step that repeats allocates nothing from the system.
/// Objects in it are not destroyed. Code that needs an object destroyed does that itself.

#include <algorithm>
#include <cstddef>
#include <new>
#include <utility>

#include "lockstep/core/memory.h"

namespace lockstep::detail {

class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() { clear(); }

  /// Gives all of it back.
  void clear() noexcept {
    while (chunks_) {
      Chunk* chunk = std::exchange(chunks_, chunks_->next);
      memory::release(chunk, chunk->capacity);
    }
  }

  /// `bytes` bytes, aligned for any type.
  void* allocate(std::size_t bytes) {
    bytes = aligned(bytes);
    if (!chunks_ || chunks_->used + bytes > chunks_->capacity) {
      const std::size_t capacity = std::max(usual_chunk, aligned(sizeof(Chunk)) + bytes);
      chunks_ = new (memory::allocate(capacity)) Chunk{chunks_, capacity, aligned(sizeof(Chunk))};
    }
    void* place = reinterpret_cast<std::byte*>(chunks_) + chunks_->used;
    chunks_->used += bytes;
    return place;
  }

 private:
  static constexpr std::size_t usual_chunk = 32 << 10;
  struct Chunk {
    Chunk* next;
    std::size_t capacity;  // bytes, this header included
    std::size_t used;
  };
  static constexpr std::size_t aligned(std::size_t bytes) {
    constexpr std::size_t align = alignof(std::max_align_t);
    return (bytes + align - 1) / align * align;
  }
  Chunk* chunks_ = nullptr;
};

}  // namespace lockstep::detail
