#pragma once
/// Scopes of one kind, of one thread. What the innermost one says holds until it ends. They may end
/// in any order, as objects in a std::optional or behind a std::unique_ptr do: the others stay.
///
///   class Precision : public ThreadScope<Precision> {
///    public:
///     explicit Precision(DType dtype) : ThreadScope("Precision"), dtype_(dtype) {}
///     static DType current() { return innermost() ? innermost()->dtype_ : DType::f32; }
///
/// A scope must end on the thread that made it, which still sees it. If it ends on another one, the
/// program ends with a StateError that names the kind.

#include "lockstep/core/error.h"

namespace lockstep {

template <class T>
class ThreadScope {
 public:
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

  /// This thread's newest living scope, or null; and the one before this one.
  static T* innermost() { return static_cast<T*>(newest); }
  T* outer() const { return static_cast<T*>(before_); }

 protected:
  explicit ThreadScope(const char* kind) : kind_(kind), before_(newest) { newest = this; }
  ~ThreadScope() {
    ThreadScope** place = &newest;
    while (*place && *place != this) place = &(*place)->before_;
    check<StateError>(*place == this, "[{}] it must end on the thread that made it", kind_);
    *place = before_;
  }

 private:
  inline static constinit thread_local ThreadScope* newest = nullptr;

  const char* kind_;
  ThreadScope* before_;
};

}  // namespace lockstep
