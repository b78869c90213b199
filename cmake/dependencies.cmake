# What the project stands on. Names of the Debian packages: see the script ./lockstep.

find_package(fmt REQUIRED)
# Debian's libfmt 9 is compiled by g++, and clang mangles the name of one of its templates
# differently: clang would not find it. Whoever compiles our headers chooses.
set(LOCKSTEP_FMT $<IF:$<CXX_COMPILER_ID:Clang,AppleClang>,fmt::fmt-header-only,fmt::fmt>)
find_package(Eigen3 REQUIRED NO_MODULE)
find_package(OpenSSL REQUIRED)
find_package(ZLIB REQUIRED)
# Debian's package for find_package(libzip) insists on libzip's programs, which nothing here uses.
find_path(LOCKSTEP_ZIP_INCLUDE zip.h REQUIRED)
find_library(LOCKSTEP_ZIP_LIBRARY zip REQUIRED)
find_package(Threads REQUIRED)

# oneDNN is 1.3 to 1.5 times as fast as Eigen at matrix products, and optional. Sanitizer builds go
# without: neither it nor OpenMP is instrumented.
set(LOCKSTEP_HAVE_ONEDNN OFF)
if(LOCKSTEP_SANITIZE)
  set(LOCKSTEP_ONEDNN OFF)
endif()
if(NOT LOCKSTEP_ONEDNN STREQUAL "OFF")
  # Debian's package for find_package(dnnl) insists on OpenCL, which nothing here uses.
  find_path(LOCKSTEP_ONEDNN_INCLUDE dnnl.h)
  find_library(LOCKSTEP_ONEDNN_LIBRARY dnnl)
  find_package(OpenMP QUIET COMPONENTS CXX)
  if(LOCKSTEP_ONEDNN_INCLUDE AND LOCKSTEP_ONEDNN_LIBRARY AND OpenMP_CXX_FOUND)
    set(LOCKSTEP_HAVE_ONEDNN ON)
  elseif(LOCKSTEP_ONEDNN STREQUAL "ON")
    message(FATAL_ERROR "LOCKSTEP_ONEDNN=ON, but oneDNN or OpenMP was not found")
  endif()
endif()
message(STATUS "oneDNN for matrix products: ${LOCKSTEP_HAVE_ONEDNN} (OFF: Eigen)")

# MPI (Open MPI, say), for `--comm mpi`. Optional: without it a stub is linked, which says so.
# Sanitizer builds go without: MPI's own leaks and races would drown ours.
set(LOCKSTEP_HAVE_MPI OFF)
if(LOCKSTEP_SANITIZE)
  set(LOCKSTEP_MPI OFF)
endif()
if(NOT LOCKSTEP_MPI STREQUAL "OFF")
  find_package(MPI QUIET COMPONENTS C)
  if(MPI_C_FOUND)
    set(LOCKSTEP_HAVE_MPI ON)
  elseif(LOCKSTEP_MPI STREQUAL "ON")
    message(FATAL_ERROR "LOCKSTEP_MPI=ON, but MPI was not found")
  endif()
endif()
message(STATUS "MPI: ${LOCKSTEP_HAVE_MPI}")
