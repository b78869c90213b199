#pragma once
/// A program and the library share the standard library's types: both must be compiled for the same
/// layout of them. Otherwise the program would link, and crash. Each part of that layout that flags
/// can change has a symbol: the linker says its name, which says what differs.
///
///   undefined reference to `lockstep::abi_check::program_has_GLIBCXX_DEBUG_but_not_the_library'
///
/// What changes no layout may differ: NDEBUG, _GLIBCXX_ASSERTIONS, optimization, sanitizers, a
/// newer C++.

#if __cplusplus < 202002L
#error "Lockstep's headers need C++20: compile with -std=c++20 or a newer one"
#endif

#include <version>  // the standard library says what it is

#ifdef _GLIBCXX_DEBUG
#define LOCKSTEP_ABI_DEBUG program_has_GLIBCXX_DEBUG_but_not_the_library
#else
#define LOCKSTEP_ABI_DEBUG library_has_GLIBCXX_DEBUG_but_not_the_program
#endif
#if defined(_GLIBCXX_USE_CXX11_ABI) && !_GLIBCXX_USE_CXX11_ABI
#define LOCKSTEP_ABI_STRINGS program_has_GLIBCXX_USE_CXX11_ABI_0_but_not_the_library
#else
#define LOCKSTEP_ABI_STRINGS library_has_GLIBCXX_USE_CXX11_ABI_0_but_not_the_program
#endif
#ifdef _LIBCPP_VERSION
#define LOCKSTEP_ABI_LIBRARY program_has_stdlib_libcxx_but_not_the_library
#else
#define LOCKSTEP_ABI_LIBRARY library_has_stdlib_libcxx_but_not_the_program
#endif

namespace lockstep::abi_check {

extern const char LOCKSTEP_ABI_DEBUG, LOCKSTEP_ABI_STRINGS, LOCKSTEP_ABI_LIBRARY;

// In each object file: of an inline variable the linker would keep one, and not look at the others.
[[gnu::used]] static const char* const wanted[] = {&LOCKSTEP_ABI_DEBUG, &LOCKSTEP_ABI_STRINGS,
                                                   &LOCKSTEP_ABI_LIBRARY};

struct Padded {
  char small;
  double large;
};
static_assert(sizeof(Padded) == 2 * sizeof(double),
              "the library was compiled without -fpack-struct: compile the program so, too");

}  // namespace lockstep::abi_check
