#pragma once
/// A thread of a kernel: its own stack, and a switch that costs a few nanoseconds.

#include <cstddef>

namespace simt::detail {

/// One flow of control. Fibers are switched by hand, never by a hidden scheduler, and belong to no
/// host thread: any may continue any (one at a time).
class Fiber {
 public:
  /// The flow that is running now, on the stack that it has.
  Fiber() = default;
  /// A flow that begins in `entry` (which never returns) on a new stack, when it is switched to.
  explicit Fiber(void (*entry)());
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Leaves this flow, the running one, and continues `to`. Returns when something continues this.
  void switch_to(Fiber& to);

  /// To begin again in its entry; what was on its stack is dropped (no destructors run).
  void restart();

  /// Whether it is on this flow's stack.
  bool holds(const void* data) const;

  /// What a new fiber must call first.
  static void arrived();

 private:
  void* stack_pointer_ =
      nullptr;  ///< or the ucontext_t, where there is no assembly for the machine
  void (*entry_)() = nullptr;
  std::byte* mapping_ = nullptr;  ///< a guard page, then the stack
  // The stack's bounds, for AddressSanitizer.
  const void* bottom_ = nullptr;
  std::size_t size_ = 0;
  void* fake_stack_ = nullptr;
};

}  // namespace simt::detail
