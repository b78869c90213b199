# Which GPU backend is built: LOCKSTEP_CUDA as the user gives it, LOCKSTEP_GPU as the rest reads it.
#
#   LOCKSTEP_CUDA=ON    the .cu files by nvcc, for GPUs          LOCKSTEP_GPU=cuda
#   LOCKSTEP_CUDA=SIM   the same files by the C++ compiler,      LOCKSTEP_GPU=sim
#                       against the simulator in simt/
#   LOCKSTEP_CUDA=OFF   none                                     LOCKSTEP_GPU=none
#   LOCKSTEP_CUDA=AUTO  ON where nvcc and a GPU are found, else OFF

set_property(CACHE LOCKSTEP_CUDA PROPERTY STRINGS AUTO ON SIM OFF)
if(NOT LOCKSTEP_CUDA MATCHES "^(AUTO|ON|SIM|OFF)$")
  message(FATAL_ERROR "LOCKSTEP_CUDA is AUTO, ON, SIM or OFF, not '${LOCKSTEP_CUDA}'")
endif()

file(GLOB nvidia_devices /dev/nvidia[0-9]*)
include(CheckLanguage)

# What kernels are compiled for: what the user says, else this machine's own GPUs, else these two.
# For 9.0 with the instructions that only it has.
function(lockstep_choose_architectures)
  set(found)
  if(nvidia_devices)
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
      OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    string(REGEX MATCHALL "[0-9]+\\.[0-9]+" found "${found}")
    list(REMOVE_DUPLICATES found)
    list(TRANSFORM found REPLACE "\\." "")
    list(TRANSFORM found REPLACE "^90$" "90a")
  endif()
  if(NOT found)
    set(found 80 90a)
  endif()
  set(CMAKE_CUDA_ARCHITECTURES ${found} PARENT_SCOPE)
endfunction()

# Finds nvcc by the names that CMake knows, or in the toolkit's own place, which is not on
# everybody's PATH. Sets `problem` to what is wrong with the toolkit, in a line; empty: it will do.
function(lockstep_check_toolkit)
  list(JOIN CMAKE_CUDA_ARCHITECTURES ", sm_" wanted)
  set(needs "the CUDA toolkit ${LOCKSTEP_OLDEST_CUDA} or newer, for sm_${wanted}")
  set(instead "install one (developer.nvidia.com/cuda-downloads), let CUDACXX name its nvcc, or \
take LOCKSTEP_CUDA=SIM, the simulator")
  set(nvcc "${CMAKE_CUDA_COMPILER}")
  if(NOT nvcc)
    unset(CMAKE_CUDA_COMPILER CACHE)  # of an earlier try
    separate_arguments(words UNIX_COMMAND "$ENV{CUDACXX}")
    list(POP_FRONT words nvcc)
  endif()
  if(NOT nvcc)
    unset(nvcc)
    find_program(nvcc nvcc PATHS /usr/local/cuda/bin NO_CACHE)
    if(nvcc)
      set(ENV{CUDACXX} "${nvcc}")
    endif()
  endif()
  set(problem "")
  if(NOT nvcc)
    set(problem "needs ${needs}; found no nvcc: ${instead}")
  else()
    execute_process(COMMAND ${nvcc} --version OUTPUT_VARIABLE said ERROR_QUIET RESULT_VARIABLE code)
    set(release unknown)
    if(said MATCHES "release ([0-9]+\\.[0-9]+)")
      set(release ${CMAKE_MATCH_1})
    endif()
    execute_process(COMMAND ${nvcc} --list-gpu-arch OUTPUT_VARIABLE known ERROR_QUIET)
    foreach(architecture IN LISTS CMAKE_CUDA_ARCHITECTURES)
      if(NOT architecture MATCHES "^([0-9]+)")
        continue()  # "native", "all"
      endif()
      if(CMAKE_MATCH_1 LESS LOCKSTEP_OLDEST_SM)
        set(problem "needs GPUs of sm_${LOCKSTEP_OLDEST_SM} or newer, not sm_${architecture}: \
take LOCKSTEP_CUDA=SIM or OFF, or other CMAKE_CUDA_ARCHITECTURES")
      elseif(NOT known MATCHES "compute_${CMAKE_MATCH_1}\n")
        set(problem "needs a CUDA toolkit that knows sm_${architecture}; found nvcc ${release}, \
${nvcc}: ${instead}")
      endif()
    endforeach()
    if(release STREQUAL "unknown" OR release VERSION_LESS LOCKSTEP_OLDEST_CUDA)
      set(problem "needs ${needs}; found nvcc ${release}, ${nvcc}: ${instead}")
    endif()
    if(NOT problem)
      check_language(CUDA)
      if(NOT CMAKE_CUDA_COMPILER)
        set(problem "found nvcc ${release}, ${nvcc}, which cannot compile here (see \
CMakeFiles/CMakeError.log): if it wants another C++ compiler, let CUDAHOSTCXX name one")
      endif()
    endif()
  endif()
  set(problem "${problem}" PARENT_SCOPE)
endfunction()

set(LOCKSTEP_GPU none)
if(LOCKSTEP_CUDA STREQUAL "SIM")
  set(LOCKSTEP_GPU sim)
elseif(LOCKSTEP_CUDA STREQUAL "ON" OR (LOCKSTEP_CUDA STREQUAL "AUTO" AND nvidia_devices))
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    lockstep_choose_architectures()
  endif()
  lockstep_check_toolkit()
  if(NOT problem)
    set(LOCKSTEP_GPU cuda)
  elseif(LOCKSTEP_CUDA STREQUAL "ON")
    message(FATAL_ERROR "LOCKSTEP_CUDA=ON ${problem}")
  else()
    message(STATUS "The GPU is not used: it ${problem}")
  endif()
endif()
if(LOCKSTEP_SANITIZE STREQUAL "races")
  if(NOT LOCKSTEP_GPU STREQUAL "sim")
    message(FATAL_ERROR "LOCKSTEP_SANITIZE=races needs the simulator, LOCKSTEP_CUDA=SIM")
  endif()
  set(LOCKSTEP_RACES ON)
endif()
message(STATUS "GPU backend: ${LOCKSTEP_GPU}")

if(LOCKSTEP_GPU STREQUAL "cuda")
  message(STATUS "GPU architectures: ${CMAKE_CUDA_ARCHITECTURES}")
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25.1 does not know that nvcc has it
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  set(CMAKE_CUDA_FLAGS_RELEASE "-O3")
  find_package(CUDAToolkit REQUIRED)
  find_path(LOCKSTEP_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV NCCL_ROOT
    PATH_SUFFIXES include)
  find_library(LOCKSTEP_NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} ENV NCCL_ROOT
    PATH_SUFFIXES lib lib64)
  set(LOCKSTEP_HAVE_NCCL OFF)
  if(LOCKSTEP_NCCL_INCLUDE AND LOCKSTEP_NCCL_LIBRARY)
    set(LOCKSTEP_HAVE_NCCL ON)
  endif()
  message(STATUS "NCCL: ${LOCKSTEP_HAVE_NCCL}")
endif()

# lockstep_gpu_sources(TARGET files...): adds .cu and .cpp files that see CUDA's headers, or the
# simulator's in their place.
function(lockstep_gpu_sources target)
  target_sources(${target} PRIVATE ${ARGN})
  set(kernel_files ${ARGN})
  list(FILTER kernel_files INCLUDE REGEX "\\.cu$")
  # Kernels of several files have parameters of the same names. (CMake merges them from 3.31 on.)
  set_source_files_properties(${kernel_files} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  if(LOCKSTEP_GPU STREQUAL "sim")
    set(options -xc++)
    if(LOCKSTEP_RACES)  # calls before each access, which simt/races/ answers
      list(APPEND options ${SIMT_RACES_OPTIONS})
      set_source_files_properties(${kernel_files} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
    set_source_files_properties(${kernel_files} PROPERTIES LANGUAGE CXX
      COMPILE_OPTIONS "${options}")
    target_link_libraries(${target} PUBLIC lockstep_simt)
  else()
    target_link_libraries(${target} PUBLIC CUDA::cudart_static)
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/kernels/cuda/native)
  endif()
endfunction()
