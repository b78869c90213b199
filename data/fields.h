#pragma once
/// Tensors by name: what a sample, a batch or a file holds.
///
///   data::Fields sample = {{"x", image}, {"y", label}};
///   const Tensor& image = sample["x"];

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/memory.h"
#include "lockstep/core/tensor.h"

namespace lockstep::data {

struct Field {
  std::string name;
  Tensor value;
};

namespace detail {

// The loader makes Fields for every batch: their memory comes from the cache, not from the heap.
template <class T>
struct CachedMemory {
  using value_type = T;
  CachedMemory() = default;
  template <class U>
  CachedMemory(const CachedMemory<U>&) {}
  T* allocate(std::size_t n) { return static_cast<T*>(memory::allocate(n * sizeof(T))); }
  void deallocate(T* block, std::size_t n) noexcept { memory::release(block, n * sizeof(T)); }
  bool operator==(const CachedMemory&) const = default;
};

}  // namespace detail

/// Fields in the order in which they were added. Copies share the tensors' elements.
/// Thread-safety: that of a std::vector.
class Fields {
 public:
  Fields() = default;
  /// Throws DataError if two have the same name.
  Fields(std::initializer_list<Field> fields);

  /// Throws DataError, which lists the names that exist, or says why this one was refused.
  const Tensor& operator[](std::string_view name) const;
  /// Null if there is none of this name.
  const Tensor* find(std::string_view name) const;
  /// Adds a field, or puts another value in the place of the one of this name.
  void set(std::string_view name, Tensor value);

  /// There is something of this name, which is not read, because of `why`: "[npy] x.npy: ...". It
  /// is no field; who asks for it is told.
  void refuse(std::string_view name, std::string why);
  /// The names that were refused, and why.
  const std::vector<std::pair<std::string, std::string>>& refused() const { return refused_; }

  std::string names() const;  ///< "x, y", for messages
  std::size_t size() const { return fields_.size(); }
  auto begin() const { return fields_.begin(); }
  auto end() const { return fields_.end(); }

 private:
  std::vector<Field, detail::CachedMemory<Field>> fields_;
  std::vector<std::pair<std::string, std::string>> refused_;  // and why
};

}  // namespace lockstep::data
