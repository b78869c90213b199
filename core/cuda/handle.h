#pragma once
/// RAII for CUDA's handles, one template for all: streams, events, graphs, libraries' handles.
///
///   using EventHandle = Handle<cudaEvent_t, cudaEventDestroy>;

#include <utility>

namespace lockstep::cuda {

/// Owns a handle and gives it to `destroy` at the end. Empty after a move. What `destroy` returns
/// is ignored: nothing can be done about it there, and an error that matters shows at the next
/// call.
template <class T, auto destroy>
class Handle {
 public:
  Handle() = default;
  explicit Handle(T value) : value_(value) {}
  Handle(Handle&& other) noexcept : value_(std::exchange(other.value_, T{})) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Handle() {
    if (value_) (void)destroy(value_);
  }

  T get() const { return value_; }
  explicit operator bool() const { return value_ != T{}; }

 private:
  T value_{};
};

}  // namespace lockstep::cuda
