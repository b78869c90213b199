#pragma once
/// Memory that ends, and begins, at a page that nobody may touch: who reads or writes one element
/// too many crashes.

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace lockstep::test {

/// `bytes` bytes between two such pages, `from_end` at the second one, else at the first.
class GuardedMemory {
 public:
  explicit GuardedMemory(std::size_t bytes, bool from_end = true);
  ~GuardedMemory();
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;
  void* data() const { return data_; }

 private:
  std::size_t mapped_;
  std::byte* pages_;
  void* data_;
};

/// Elements in such memory.
template <class T>
class GuardedArray {
 public:
  GuardedArray(std::span<const T> values, bool from_end)
      : memory_(values.size_bytes(), from_end), size_(values.size()) {
    if (size_ > 0) std::memcpy(data(), values.data(), values.size_bytes());
  }
  T* data() const { return static_cast<T*>(memory_.data()); }
  std::vector<T> values() const { return {data(), data() + size_}; }

 private:
  GuardedMemory memory_;
  std::size_t size_;
};

/// While it lives, what this thread gets of `new (alignment) T[n]` ends at such a page, to the
/// alignment; also what it keeps.
struct GuardedArrays {
  GuardedArrays();
  ~GuardedArrays();
  GuardedArrays(const GuardedArrays&) = delete;
  GuardedArrays& operator=(const GuardedArrays&) = delete;
};

}  // namespace lockstep::test
