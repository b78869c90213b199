#include "lockstep/simt/execution/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <new>

#ifndef __x86_64__
#include <ucontext.h>
#endif

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
// Declared here so that calls of them compile; none is made.
static void __sanitizer_start_switch_fiber(void**, const void*, std::size_t) {}
static void __sanitizer_finish_switch_fiber(void*, const void**, std::size_t*) {}
static void __asan_unpoison_memory_region(const void*, std::size_t) {}
#endif

namespace simt::detail {
namespace {

/// Pages are touched only as they are used. Frames are large with AddressSanitizer.
constexpr std::size_t stack_bytes = std::size_t{256} << 10;

Fiber* left = nullptr;  ///< the fiber that the latest switch left

}  // namespace

#ifdef __x86_64__

// switch_stack(void** save, void* load): pushes what a call must preserve (System V ABI, section
// 3.2.1; no code here changes the floating-point control words), saves the stack pointer, and takes
// the same from the other stack.
asm(R"(
  .text
  .p2align 4
  .type simt_switch_stack, @function
simt_switch_stack:
  .cfi_startproc
  endbr64
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmpq *%rcx
  .cfi_endproc
  .size simt_switch_stack, .-simt_switch_stack
)");
extern "C" void simt_switch_stack(void** save, void* load);

namespace {

void* prepare(std::byte* stack, void (*entry)()) {
  // From the top: a return address of 0, where a debugger's backtrace ends; the entry; six
  // registers.
  auto** top = reinterpret_cast<void**>(stack + stack_bytes);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  return top;
}
void discard(void*) {}
void switch_stack(void*& save, void* load) { simt_switch_stack(&save, load); }

}  // namespace

#else

namespace {

void* prepare(std::byte* stack, void (*entry)()) {
  auto* context = new ucontext_t;
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = stack_bytes;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
  return context;
}
void discard(void* context) { delete static_cast<ucontext_t*>(context); }
void switch_stack(void*& save, void* load) {
  if (!save) save = new ucontext_t;
  swapcontext(static_cast<ucontext_t*>(save), static_cast<ucontext_t*>(load));
}

}  // namespace

#endif

Fiber::Fiber(void (*entry)()) : entry_(entry) {
  const auto guard = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* mapping = mmap(nullptr, guard + stack_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED || mprotect(mapping, guard, PROT_NONE) != 0) throw std::bad_alloc();
  mapping_ = static_cast<std::byte*>(mapping);
  bottom_ = mapping_ + guard;
  size_ = stack_bytes;
  stack_pointer_ = prepare(mapping_ + guard, entry_);
}

Fiber::~Fiber() {
  discard(stack_pointer_);
  if (mapping_) {
    __asan_unpoison_memory_region(bottom_, size_);
    munmap(mapping_, static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) + size_);
  }
}

void Fiber::restart() {
  discard(stack_pointer_);
  __asan_unpoison_memory_region(bottom_, size_);
  fake_stack_ = nullptr;
  stack_pointer_ = prepare(mapping_ + sysconf(_SC_PAGESIZE), entry_);
}

void Fiber::switch_to(Fiber& to) {
  left = this;
  __sanitizer_start_switch_fiber(&fake_stack_, to.bottom_, to.size_);
  switch_stack(stack_pointer_, to.stack_pointer_);
  __sanitizer_finish_switch_fiber(fake_stack_, &left->bottom_, &left->size_);
}

bool Fiber::holds(const void* data) const {
  const auto* const bottom = static_cast<const std::byte*>(bottom_);
  return std::less_equal<>()(bottom, static_cast<const std::byte*>(data)) &&
         std::less<>()(static_cast<const std::byte*>(data), bottom + size_);
}

void Fiber::arrived() { __sanitizer_finish_switch_fiber(nullptr, &left->bottom_, &left->size_); }

}  // namespace simt::detail
