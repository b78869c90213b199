/// The functions that the compiler calls before each access in a file that was compiled with
/// -fsanitize=thread. Their names are ThreadSanitizer's, whose own runtime is not linked. Such a
/// file has kernels, and code for the host, whose accesses are ignored.

#include <cstddef>
#include <cstdint>
#include <string>

#include "lockstep/simt/races/races.h"
#include "lockstep/simt/watch/source_line.h"
#include "lockstep/simt/watch/watch.h"

namespace races = simt::detail::races;
namespace watch = simt::detail::watch;

namespace {

/// The compiler knows that the address is a multiple of the size, if that is true of the type.
void check_aligned(const void* data, std::size_t bytes, const void* caller) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  if (address % bytes != 0)
    races::misaligned(address, bytes, [caller] { return watch::kernel_line(caller); });
}

}  // namespace

// NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp)
extern "C" {

#define ALIGNED(kind, bytes)                                                    \
  void __tsan_##kind##bytes(void* data) {                                       \
    check_aligned(data, bytes, __builtin_return_address(0));                    \
    watch::access(data, bytes, watch::Kind::kind, __builtin_return_address(0)); \
  }
#define ACCESS(name, kind, bytes)                                               \
  void __tsan_##name##bytes(void* data) {                                       \
    watch::access(data, bytes, watch::Kind::kind, __builtin_return_address(0)); \
  }
#define VOLATILE(kind, bytes)                                                            \
  void __tsan_volatile_##kind##bytes(void* data) {                                       \
    watch::access(data, bytes, watch::Kind::atomic_##kind, __builtin_return_address(0)); \
  }
#define ACCESSES(bytes)                 \
  ALIGNED(read, bytes)                  \
  ALIGNED(write, bytes)                 \
  ACCESS(unaligned_read, read, bytes)   \
  ACCESS(unaligned_write, write, bytes) \
  VOLATILE(read, bytes)                 \
  VOLATILE(write, bytes)

ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

void __tsan_read_range(void* data, unsigned long bytes) {
  watch::access(data, bytes, watch::Kind::read, __builtin_return_address(0));
}
void __tsan_write_range(void* data, unsigned long bytes) {
  watch::access(data, bytes, watch::Kind::write, __builtin_return_address(0));
}

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

/// What the compiler says of a pointer (-fsanitize=alignment; the runtime of that is not linked
/// either).
struct Pointer {
  const char* file;
  std::uint32_t line, column;
  const void* type;
  unsigned char alignment;  ///< the power of two
  unsigned char use;
};
void __ubsan_handle_type_mismatch_v1(const Pointer* pointer, std::uintptr_t address) {
  races::misaligned(address, std::size_t{1} << pointer->alignment, [pointer] {
    return std::string(pointer->file) + ":" + std::to_string(pointer->line);
  });
}

// Atomics of the host: they are what they would be without the calls.
#define ATOMICS(bits, T)                                                                          \
  T __tsan_atomic##bits##_load(const volatile T* at, int) {                                       \
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                                 \
  }                                                                                               \
  void __tsan_atomic##bits##_store(volatile T* at, T value, int) {                                \
    __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                                                \
  }                                                                                               \
  T __tsan_atomic##bits##_exchange(volatile T* at, T value, int) {                                \
    return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);                                      \
  }                                                                                               \
  T __tsan_atomic##bits##_fetch_add(volatile T* at, T value, int) {                               \
    return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);                                       \
  }                                                                                               \
  T __tsan_atomic##bits##_fetch_sub(volatile T* at, T value, int) {                               \
    return __atomic_fetch_sub(at, value, __ATOMIC_SEQ_CST);                                       \
  }                                                                                               \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile T* at, T* expected, T value, int,    \
                                                    int) {                                        \
    return __atomic_compare_exchange_n(at, expected, value, false, __ATOMIC_SEQ_CST,              \
                                       __ATOMIC_SEQ_CST);                                         \
  }                                                                                               \
  T __tsan_atomic##bits##_compare_exchange_val(volatile T* at, T expected, T value, int, int) {   \
    __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    return expected;                                                                              \
  }

ATOMICS(8, unsigned char)
ATOMICS(32, unsigned)
ATOMICS(64, unsigned long)

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp)
