# How every target of this project is made.

# Sources read "lockstep/core/tensor.h": the build folder has a link of that name, and beside it
# what CMake writes, lockstep/version.h.
set(linked ${CMAKE_CURRENT_BINARY_DIR}/include)
set(generated ${CMAKE_CURRENT_BINARY_DIR}/generated)
file(MAKE_DIRECTORY ${linked})
file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR} ${linked}/lockstep SYMBOLIC)
configure_file(cmake/version.h.in ${generated}/lockstep/version.h @ONLY)
set(LOCKSTEP_INCLUDE ${linked} ${generated})

# Warnings, and what the sanitizers need, for C++ and for the host side of CUDA alike.
set(warnings -Wall -Wextra -Wshadow)
if(CMAKE_UNITY_BUILD)  # several sources are then one: a name of one hides another's, lawfully
  list(APPEND warnings -Wno-shadow)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND warnings -Wno-subobject-linkage)
  endif()
endif()
if(LOCKSTEP_WERROR)
  list(APPEND warnings -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # False alarms of g++ 12 inside its own AVX-512, string and vector headers, and in fmt's.
  list(APPEND warnings -Wno-maybe-uninitialized -Wno-uninitialized -Wno-restrict
    -Wno-stringop-overflow -Wno-array-bounds)
endif()

add_library(lockstep_flags INTERFACE)
target_compile_options(lockstep_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:${warnings} -Wpedantic>
  # nvcc does compile the constexpr functions of fmt, which fmt 9 doubts.
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=$<JOIN:${warnings},$<COMMA>>
    $<$<BOOL:${LOCKSTEP_WERROR}>:-Werror=all-warnings> --expt-relaxed-constexpr
    -DFMT_USE_CONSTEXPR=1>)
if(LOCKSTEP_NATIVE AND NOT LOCKSTEP_SANITIZE)
  target_compile_options(lockstep_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=native>)
  # g++ 12 miscompiles copies of 32-byte constants with AVX-512 ({a, a, 0, 0} arrives as {a, a, a,
  # a}); not if it moves memory by 16 bytes at a time. Loops are vectorized as ever.
  include(CheckCXXCompilerFlag)
  check_cxx_compiler_flag("-mmove-max=128 -mstore-max=128" LOCKSTEP_HAVE_MOVE_MAX)
  if(LOCKSTEP_HAVE_MOVE_MAX)
    target_compile_options(lockstep_flags INTERFACE
      $<$<COMPILE_LANGUAGE:CXX>:-mmove-max=128 -mstore-max=128>)
  endif()
endif()
# Tests are compiled more often than run.
set(is_test $<BOOL:$<TARGET_PROPERTY:LOCKSTEP_TEST>>)
# Under a sanitizer only these are optimized: other libraries mostly wait.
set(is_slow_to_run $<IN_LIST:$<TARGET_PROPERTY:NAME>,lockstep_core;lockstep_kernels;lockstep_simt>)
if(NOT LOCKSTEP_SANITIZE)
  target_compile_options(lockstep_flags INTERFACE $<$<AND:$<COMPILE_LANGUAGE:CXX>,${is_test}>:-O0>)
else()
  if(NOT LOCKSTEP_SANITIZE STREQUAL "races")  # which is the simulator's (gpu.cmake)
    set(sanitizer -fsanitize=${LOCKSTEP_SANITIZE} -fno-sanitize-recover=all)
    target_link_options(lockstep_flags INTERFACE -fsanitize=${LOCKSTEP_SANITIZE})
  endif()
  target_compile_options(lockstep_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:
    ${sanitizer} -fno-omit-frame-pointer -g1 -O$<IF:${is_slow_to_run},1,0>>)
  if(LOCKSTEP_SANITIZE MATCHES "undefined")
    # AddressSanitizer sees most of these too, x86 loads what is not aligned, and without them half
    # of the compile time is saved. In the tests' own sources there is nothing to be looked for, nor
    # do these need to know when a temporary ends, of which every CHECK has some.
    target_compile_options(lockstep_flags INTERFACE
      $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=null,vptr,object-size,pointer-overflow,alignment>
      $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=nonnull-attribute,returns-nonnull-attribute>
      $<$<AND:$<COMPILE_LANGUAGE:CXX>,${is_test}>:-fno-sanitize=undefined
        -fno-sanitize-address-use-after-scope>)
  endif()
  # ThreadSanitizer sees a copy only as a call. From -O1 on the compiler writes a short one out, and
  # a race on it goes unseen.
  if(LOCKSTEP_SANITIZE STREQUAL "thread")
    target_compile_options(lockstep_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fno-builtin-memcpy
      -fno-builtin-memmove -fno-builtin-memset>)
  endif()
  # How g++ tells sources which sanitizer is on; clang tells it otherwise (__has_feature).
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    if(LOCKSTEP_SANITIZE MATCHES "address")
      target_compile_definitions(lockstep_flags INTERFACE __SANITIZE_ADDRESS__)
    elseif(LOCKSTEP_SANITIZE STREQUAL "thread")
      target_compile_definitions(lockstep_flags INTERFACE __SANITIZE_THREAD__)
    endif()
  endif()
endif()

# What nearly every source reads is compiled once, for libraries and for tests; small headers, since
# what they instantiate is paid for in every file. Each file still includes what it uses: clang-tidy
# reads it without. Targets share it although -O differs, which g++ allows, but not between some -O
# and none.
if(NOT (PROJECT_IS_TOP_LEVEL AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND
        CMAKE_BUILD_TYPE STREQUAL "Release") OR CMAKE_POSITION_INDEPENDENT_CODE)
  set(CMAKE_DISABLE_PRECOMPILE_HEADERS ON)
endif()
set(LOCKSTEP_COMMON_HEADERS <fmt/core.h> <algorithm> <array> <atomic> <chrono> <cmath> <functional>
  <memory> <mutex> <numeric> <optional> <span> <string> <thread> <vector>)

# lockstep_library(NAME sources...): one static library per folder; link what it stands on yourself.
function(lockstep_library name)
  add_library(${name} STATIC ${ARGN})
  target_include_directories(${name} PUBLIC ${LOCKSTEP_INCLUDE})
  target_link_libraries(${name} PRIVATE lockstep_flags)
  target_compile_features(${name} PUBLIC cxx_std_20)
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  set(owner lockstep_core)
  if(LOCKSTEP_SANITIZE)
    set(owner lockstep_autograd)  # the first that is not optimized
  endif()
  if(name MATCHES "^lockstep_(core|kernels)$" OR name STREQUAL owner)  # options of their own
    target_precompile_headers(${name} PRIVATE ${LOCKSTEP_COMMON_HEADERS})
  elseif(NOT name STREQUAL "lockstep_simt")  # which knows no fmt
    target_precompile_headers(${name} REUSE_FROM ${owner})
  endif()
endfunction()

# Programs say what to do, libraries do it: -O1 is enough for programs and for what they share. They
# read lockstep.h, which lockstep_programs (tools/) compiles once for all.
function(lockstep_compile_as_program name)
  target_link_libraries(${name} PRIVATE lockstep_flags)
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(NOT name STREQUAL "lockstep_programs")
    target_precompile_headers(${name} REUSE_FROM lockstep_programs)
  endif()
endfunction()

# lockstep_program(NAME sources...): an executable on top of the whole library.
function(lockstep_program name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE lockstep_all)
  lockstep_compile_as_program(${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
endfunction()

# lockstep_program_library(NAME sources...): what several programs share, or one and its test.
function(lockstep_program_library name)
  add_library(${name} STATIC ${ARGN})
  target_include_directories(${name} PUBLIC ${LOCKSTEP_INCLUDE})
  target_compile_features(${name} PUBLIC cxx_std_20)
  lockstep_compile_as_program(${name})
endfunction()
